"""From a run folder to a run that runs: in the foreground or the background, with the last words to the person."""

from __future__ import annotations

import logging
import sys

from hpcrl.config.seam import ExitCode
from workflows.run import Run
from workflows.schedulers import local

logger = logging.getLogger("workflows")


def drive_run(run: Run, detach: bool) -> int:
    """Run the stages that are not finished; the run folder is the last line on stdout. Returns the exit code."""
    held = local.lock(run)
    if detach:
        pid = local.start_detached(run, held)
        logger.info("%s runs in the background (pid %d); `make status RUN=%s`", run.name, pid, run.path.name)
        _last_line(run)
        return 0
    logger.info("%s: %s", run.name, " -> ".join(stage.name for stage in run.stages))
    with held:
        code = local.Driver(run).drive()
    _say_end(run, code)
    _last_line(run)
    return int(code)


def _say_end(run: Run, code: ExitCode) -> None:
    again = f"RUN={run.path.name}"
    if code is ExitCode.DONE:
        logger.info("%s is done", run.name)
    elif code in (ExitCode.USER_ERROR, ExitCode.BUG):
        logger.error("%s failed; after a repair of what it read: `make retry %s`", run.name, again)
    elif code is ExitCode.NO_SPACE:
        logger.error("%s has no space left; free some, then `make resume %s`", run.name, again)
    else:
        logger.error("%s stopped; nothing finished is lost: `make resume %s` continues it", run.name, again)


def _last_line(run: Run) -> None:
    sys.stdout.write(f"{run.path}\n")
    sys.stdout.flush()
