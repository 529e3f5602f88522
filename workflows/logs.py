"""The output of a stage's newest attempt.

python -m workflows.logs RUN [STAGE] [run_root=…] [--follow]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time

from hpcrl.config.seam import AttemptFolder, UserError
from workflows.cli import guarded, only_run, run_root_of
from workflows.records import read_view
from workflows.run import Run, find_run
from workflows.state import run_state

POLL = 0.3


def newest_log(run: Run, stage: str | None) -> AttemptFolder:
    """The newest attempt of the stage; without one, of the stage that ran last."""
    stages = [run.stage(stage)] if stage else run.stages
    attempts = [attempt for s in stages for attempt in run.folder.stage(s.name).attempts()]
    written = [attempt for attempt in attempts if attempt.log.exists()]
    if not written:
        where = f"stage {stage} has not" if stage else "no stage has"
        background = run.path / "driver.log"
        hint = f"; of the background there is {background}" if background.exists() else ""
        raise UserError(f"{run.name}: {where} written anything yet; see `make status RUN={run.path.name}`{hint}")
    return max(written, key=lambda attempt: attempt.log.stat().st_mtime)


def follow(run: Run, stage: str | None) -> None:
    """Print the output as it comes, of one attempt after another, until nothing of the run is running."""
    shown: AttemptFolder | None = None
    file = None
    while True:
        running = run_state(read_view(run)).state == "RUNNING"
        attempt = newest_log(run, stage)
        if attempt != shown:
            shown, file = attempt, attempt.log.open("rb")
        assert file is not None
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.flush()
        if not running:
            return
        time.sleep(POLL)


def main() -> int:
    run_root, rest = run_root_of(sys.argv[1:])
    parser = argparse.ArgumentParser(
        prog="python -m workflows.logs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="RUN [STAGE]")
    parser.add_argument("--follow", action="store_true", help="go on as more is written")
    given = parser.parse_intermixed_args(rest)
    run = find_run(run_root, only_run(given.names[:1], "logs"))
    stage = given.names[1] if len(given.names) > 1 else None
    if given.follow:
        follow(run, stage)
    else:
        with newest_log(run, stage).log.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
