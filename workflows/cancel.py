"""Stop a run in order, then end whatever is left of it. `resume` continues it.

python -m workflows.cancel RUN [run_root=…] [--now]
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time

from hpcrl.config.seam import InfrastructureError
from workflows.cli import guarded, only_run, run_root_of
from workflows.processes import ProcessId, send
from workflows.run import Run, find_run
from workflows.schedulers import local

logger = logging.getLogger("workflows.cancel")

POLL = 0.1
MARGIN = 40.0
"""Seconds over the stop's grace that the driver may take before it is ended itself."""


def cancel(run: Run, now: bool) -> None:
    """End all processes of the run, in order where there is time; returns when they are gone."""
    driver = local.driver_of(run)
    if driver is not None and driver.alive() is None:
        raise InfrastructureError(f"{run.name} is driven from {driver.host}; cancel it there")
    if driver is not None and driver.alive():
        _stop_driver(run, driver, now)
    else:
        logger.info("%s is not running", run.name)
    with local.lock(run):
        local.sweep(run)
    logger.info("nothing of %s runs any more; `make resume RUN=%s` continues it", run.name, run.path.name)


def _stop_driver(run: Run, driver: ProcessId, now: bool) -> None:
    grace = 0.0 if now else float(run.config["cluster"]["stop_grace"])
    logger.info("asking %s to stop, at most %g s", run.name, grace)
    send([driver.pid], signal.SIGTERM)
    until = time.monotonic() + grace
    hastened = False
    while driver.alive():
        if time.monotonic() > until and not hastened:
            send([driver.pid], signal.SIGTERM)
            hastened = True
        if time.monotonic() > until + MARGIN:
            send([driver.pid], signal.SIGKILL)
        time.sleep(POLL)


def main() -> int:
    run_root, rest = run_root_of(sys.argv[1:])
    parser = argparse.ArgumentParser(
        prog="python -m workflows.cancel", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="RUN", help="a path, a run id, or an experiment for its latest")
    parser.add_argument("--now", action="store_true", help="do not wait for a save")
    given = parser.parse_intermixed_args(rest)
    run = find_run(run_root, only_run(given.names, "cancel"))
    cancel(run, given.now)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
