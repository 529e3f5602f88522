"""What every stage command shares: its arguments, logging, heartbeat, exit record and exit code."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hpcrl.config import Config
from hpcrl.config.seam import AttemptFolder, ExitCode, HpcrlError, RunFolder, UserError
from hpcrl.utils.disk import disk_is_full
from hpcrl.utils.files import write_json
from hpcrl.utils.run import load_config
from hpcrl.utils.stop import StopFlag

logger = logging.getLogger(__name__)


@dataclass
class StageJob:
    """One attempt of one stage, as the stage's code sees it."""

    name: str
    folder: RunFolder
    attempt: AttemptFolder
    config: Config
    stop: StopFlag
    first_step: int | None = None
    """First step of this attempt, for the exit record."""
    last_saved_step: int | None = None
    """Newest step that is safely on disk, for the exit record."""
    _beat: dict[str, object] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        """Where the stage puts what it makes; may hold what an earlier attempt left."""
        return self.folder.stage(self.name).out

    def heartbeat(self, phase: str, step: int | None = None, total: int | None = None) -> None:
        """Say that the stage lives, and where it is."""
        self._beat = {
            "phase": phase,
            "step": step if step is not None else self._beat.get("step"),
            "total_steps": total if total is not None else self._beat.get("total_steps"),
            "time": time.time(),
        }
        write_json(self.attempt.heartbeat, self._beat)


def stage_main(name: str, run: Callable[[StageJob], None]) -> None:
    """Run a stage from the command line `run_dir=… attempt_dir=…` and exit by the table of exit codes."""
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("hpcrl").setLevel(logging.INFO)
    try:
        job = _open(name, sys.argv[1:])
    except HpcrlError as error:
        logger.error("%s", error)
        sys.exit(int(error.exit_code))
    code, reason = _run(job, run)
    try:
        write_json(job.attempt.exit_record, _exit_record(job, code, reason))
    except OSError as error:  # a full disk: the exit code still says how it ended
        logger.error("%s could not be written: %s", job.attempt.exit_record, error)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code))  # threads and handlers of libraries must not change how the stage ends


def _exit_record(job: StageJob, code: ExitCode, reason: str) -> dict[str, object]:
    return {
        "code": int(code),
        "kind": code.kind,
        "reason": reason,
        "first_step": job.first_step,
        "last_saved_step": job.last_saved_step,
    }


def _run(job: StageJob, run: Callable[[StageJob], None]) -> tuple[ExitCode, str]:
    try:
        job.heartbeat("start")
        job.stop.check()
        run(job)
    except KeyboardInterrupt:
        return ExitCode.STOPPED, "interrupted"
    except HpcrlError as error:
        logger.error("%s", error)
        return _after_a_stop(job, error.exit_code, str(error))
    except SystemExit as error:
        logger.exception("stage %s called exit", job.name)
        return ExitCode.BUG, f"something in the stage called exit({error.code})"
    except Exception as error:
        if disk_is_full(error):
            logger.error("no space left: %s; free some and `resume`", error)
            return ExitCode.NO_SPACE, f"no space left: {error}; free some and `resume`"
        logger.exception("stage %s failed", job.name)
        return ExitCode.BUG, f"{type(error).__name__}: {error}"
    return ExitCode.DONE, "done"


def _after_a_stop(job: StageJob, code: ExitCode, reason: str) -> tuple[ExitCode, str]:
    """What breaks after a stop was asked for broke because of it: Ray's processes are ended with the job's."""
    stop = job.stop.reason()
    if code is ExitCode.INFRASTRUCTURE and stop is not None:
        return ExitCode.STOPPED, f"stopped by request: {stop} ({reason})"
    return code, reason


def _open(name: str, arguments: list[str]) -> StageJob:
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    if set(given) != {"run_dir", "attempt_dir"} or len(arguments) != 2:
        raise UserError(f"usage: python -m hpcrl.{name} run_dir=RUN_FOLDER attempt_dir=ATTEMPT_FOLDER")
    folder = RunFolder(Path(given["run_dir"]).resolve())
    attempt = AttemptFolder(Path(given["attempt_dir"]).resolve())
    _assert_code_of_run(folder)
    config = load_config(folder)
    attempt.path.mkdir(parents=True, exist_ok=True)
    folder.stage(name).out.mkdir(parents=True, exist_ok=True)
    return StageJob(name=name, folder=folder, attempt=attempt, config=config, stop=StopFlag(attempt))


def _assert_code_of_run(folder: RunFolder) -> None:
    """A queued job must run what was submitted, never a later edit."""
    here = Path(__file__).resolve().parents[1]
    if folder.code.exists() and here != folder.code.resolve():
        raise UserError(
            f"hpcrl was imported from {here}, not from the run's own copy {folder.code}: put it first on PYTHONPATH"
        )


def standalone_job(config: Config, name: str = "train") -> StageJob:
    """An attempt in a folder of its own below `run_root`, for a trainer that no workflow runs."""
    started = time.strftime("standalone-%Y%m%d-%H%M%S")
    folder = RunFolder(Path(config.run_root).resolve() / config.trainer.experiment_name / f"{started}-{os.getpid()}")
    stage = folder.stage(name)
    attempt = stage.attempt(1)
    attempt.path.mkdir(parents=True, exist_ok=True)
    stage.out.mkdir(parents=True, exist_ok=True)
    return StageJob(name=name, folder=folder, attempt=attempt, config=config, stop=StopFlag(attempt))
