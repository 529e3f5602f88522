"""Run the failed stages of a run again, and what waits for them.

python -m workflows.retry RUN [run_root=…] [--detach]
"""

from __future__ import annotations

import sys

from hpcrl.config.seam import UserError
from workflows.cli import guarded
from workflows.drive import drive_run
from workflows.records import read_view
from workflows.resume import command
from workflows.state import run_state


def main() -> int:
    run, detach = command("retry", __doc__)
    state = run_state(read_view(run))
    if not any(stage.state == "FAILED" for stage in state.stages):
        raise UserError(f"no stage of {run.name} failed (it is {state.state}); `make resume` continues a stopped run")
    return drive_run(run, detach)


if __name__ == "__main__":
    sys.exit(guarded(main))
