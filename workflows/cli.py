"""What the commands share: arguments, messages on stderr, and exit codes in place of tracebacks."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from hpcrl.config.seam import ExitCode, HpcrlError, UserError
from workflows.paths import root_path

logger = logging.getLogger("workflows")


def guarded(main: Callable[[], int]) -> int:
    """Run a command; an error that is for a person becomes one message and its exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    try:
        return main()
    except HpcrlError as error:
        logger.error("error: %s", error)
        return int(error.exit_code)
    except KeyboardInterrupt:
        logger.error("interrupted")
        return int(ExitCode.STOPPED)
    except BrokenPipeError:  # the reader of our output left: `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            logger.error("error: no space left (%s); free some and `resume`", error)
            return int(ExitCode.NO_SPACE)
        raise


def run_root_of(arguments: list[str]) -> tuple[Path, list[str]]:
    """The run root (`run_root=…`, else RUN_ROOT, else runs), and the other arguments."""
    given = [text.partition("=")[2] for text in arguments if text.startswith("run_root=")]
    root = given[-1] if given else os.environ.get("RUN_ROOT") or "runs"
    rest = [text for text in arguments if not text.startswith("run_root=")]
    return root_path(root.strip("'\"") if given else root), rest


def only_run(names: list[str], command: str) -> str:
    """The one RUN of a command's arguments."""
    if len(names) != 1 or not names[0]:
        raise UserError(f"say which run: `make {command} RUN=…` (a path, a run id, or an experiment for its latest)")
    return names[0]
