"""Continue a run that stopped, from what is on disk; finished stages are not run again.

python -m workflows.resume RUN [run_root=…] [--detach]
"""

from __future__ import annotations

import argparse
import sys

from hpcrl.config.seam import UserError
from workflows.cli import guarded, only_run, run_root_of
from workflows.drive import drive_run
from workflows.processes import end_with_parent
from workflows.records import read_view
from workflows.run import Run, find_run
from workflows.state import RETRIED, run_state


def check_resumable(run: Run) -> None:
    """Raises UserError where resuming would only fail again."""
    for stage in run_state(read_view(run)).stages:
        if stage.state == "FAILED" and stage.kind in RETRIED:
            raise UserError(
                f"{stage.stage} of {run.name} failed ({stage.reason}) and would fail again as it is; "
                f"repair what it reads, then `make retry RUN={run.path.name}`; "
                "with other code or config submit anew"
            )


def command(name: str, description: str | None) -> tuple[Run, bool]:
    """The run and --detach of `resume` and `retry`."""
    run_root, rest = run_root_of(sys.argv[1:])
    parser = argparse.ArgumentParser(
        prog=f"python -m workflows.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="RUN", help="a path, a run id, or an experiment for its latest")
    parser.add_argument("--detach", action="store_true", help="run in the background")
    parser.add_argument("--end-with-parent", action="store_true", help="stop in order when the caller dies (make)")
    given = parser.parse_intermixed_args(rest)
    if given.end_with_parent and not given.detach:
        end_with_parent()
    return find_run(run_root, only_run(given.names, name)), given.detach


def main() -> int:
    run, detach = command("resume", __doc__)
    check_resumable(run)
    return drive_run(run, detach)


if __name__ == "__main__":
    sys.exit(guarded(main))
