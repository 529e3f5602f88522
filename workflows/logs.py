"""The output of a stage's newest attempt.

python -m workflows.logs RUN [STAGE] [run_root=…] [--follow]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from typing import BinaryIO

from hpcrl.config.seam import AttemptFolder, UserError
from workflows.cli import guarded, only_run, run_root_of
from workflows.records import read_view
from workflows.run import Run, find_run
from workflows.state import run_state

POLL = 0.3


def newest_log(run: Run, stage: str | None) -> AttemptFolder:
    """The newest attempt of the stage; without one, of the stage that ran last."""
    written = _logs(run, stage)
    if not written:
        where = f"stage {stage} has not" if stage else "no stage has"
        background = run.path / "driver.log"
        hint = f"; of the background there is {background}" if background.exists() else ""
        raise UserError(f"{run.name}: {where} written anything yet; see `make status RUN={run.path.name}`{hint}")
    return max(written, key=lambda attempt: attempt.log.stat().st_mtime)


def _logs(run: Run, stage: str | None) -> list[AttemptFolder]:
    """Attempts that have written, in the order in which stages and attempts follow each other."""
    stages = [run.stage(stage)] if stage else run.stages
    attempts = [attempt for s in stages for attempt in run.folder.stage(s.name).attempts()]
    return [attempt for attempt in attempts if attempt.log.exists()]


def follow(run: Run, stage: str | None) -> None:
    """Print the output as it comes, of one attempt after another, until nobody will write any more."""
    before = _logs(run, stage)
    shown = [newest_log(run, stage)] if before or not _goes_on(run, stage) else []
    known = {attempt.path for attempt in before}
    files: list[BinaryIO] = [attempt.log.open("rb") for attempt in shown]
    while True:
        going = _goes_on(run, stage)  # asked first: what is written until the answer is no is printed below
        for attempt in _logs(run, stage):
            if attempt.path not in known:
                known.add(attempt.path)
                files.append(attempt.log.open("rb"))
        for file in files:
            shutil.copyfileobj(file, sys.stdout.buffer)
        for file in files[:-1]:  # its attempt ended before the next one began
            file.close()
        files = files[-1:]
        sys.stdout.flush()
        if not going:
            return
        time.sleep(POLL)


def _goes_on(run: Run, stage: str | None) -> bool:
    """Whether more may be written: somebody drives the run, or a job of it lives, or that cannot be seen from here."""
    view = read_view(run)
    state = run_state(view)
    if stage and any(shown.stage == stage and shown.state == "DONE" for shown in state.stages):
        return False
    return bool(view.driver_alive) or state.state in ("RUNNING", "UNKNOWN")


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
