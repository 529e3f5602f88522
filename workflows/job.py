"""What a job script asks of Python: `begin` an attempt, `finish` it. Runs inside the job, from the run's own code."""

from __future__ import annotations

import argparse
import errno
import importlib.util
import logging
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

from hpcrl.config.seam import (
    AttemptFolder,
    ExitCode,
    HpcrlError,
    StageFolder,
    StopRequested,
    UserError,
    write_json,
    write_text,
)
from workflows.attempts import JobRecord, read_next, record_end
from workflows.budget import seconds_of
from workflows.cache import Cache
from workflows.cli import guarded
from workflows.completion import Marker, damage, describe_outputs, missing_outputs, read_marker, write_marker
from workflows.fingerprint import Fingerprint, difference, fingerprint
from workflows.processes import SUBMISSION, ProcessId
from workflows.run import Run
from workflows.stages import Stage

logger = logging.getLogger("workflows.job")


def begin(run: Run, stage: Stage, pid: int) -> AttemptFolder | None:
    """The folder of a new attempt; None when the stage is finished already, here or in the cache.

    Says why the stage is run, or is not. Raises UserError when a parent is not finished or the code is not the run's.
    """
    assert_code(run)
    assert_alone(run, stage, pid)
    cache = Cache(run.run_root)
    wanted = fingerprint(run.folder, stage, run.config, cache.hashes)
    folder = run.folder.stage(stage.name)
    reason = why_run(folder, wanted, cache)
    if reason is None:
        logger.info("%s: finished before, and nothing that it depends on changed", stage.name)
        return None
    folder.done.unlink(missing_ok=True)
    _set_stale_aside(run, stage, wanted)
    if stage.shared:
        if cache.take(wanted.digest, folder):
            logger.info("%s: taken from the cache (%s): same code, config and inputs", stage.name, wanted.digest[:12])
            return None
        reason = _why_not_cached(stage, wanted, cache) if reason == NEVER else reason
    attempt = _new_attempt(folder)
    JobRecord(
        process=ProcessId.of(pid),
        submission=os.environ.get(SUBMISSION, ""),
        fingerprint=wanted.digest,
        ingredients=wanted.ingredients,
        started=time.time(),
    ).write(attempt)
    _limit(stage, attempt)
    logger.info("%s: attempt %d, since %s", stage.name, attempt.number, reason)
    return attempt


def _limit(stage: Stage, attempt: AttemptFolder) -> None:
    """Write when the job ends by its time limit; here nobody else would."""
    limit = seconds_of(stage.resources.get("time"))
    if limit:
        write_text(attempt.deadline, str(time.time() + limit))


def record_failed_begin(run: Run, stage: Stage, pid: int, error: Exception) -> None:
    """An attempt that could not begin leaves a folder too, so that the reason is seen later and elsewhere."""
    code = error.exit_code if isinstance(error, HpcrlError) else ExitCode.BUG
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        code = ExitCode.NO_SPACE
    attempt = _new_attempt(run.folder.stage(stage.name))
    JobRecord(ProcessId.of(pid), os.environ.get(SUBMISSION, ""), "", {}, time.time()).write(attempt)
    reason = str(error) if isinstance(error, HpcrlError) else f"{type(error).__name__}: {error}"
    write_text(attempt.log, f"the attempt could not begin: {reason}\n")
    write_json(attempt.exit_record, {"code": int(code), "kind": code.kind, "reason": reason})
    record_end(run, stage, attempt, int(code))


NEVER = "it has not run yet"


def why_run(folder: StageFolder, wanted: Fingerprint, cache: Cache) -> str | None:
    """Why the stage must run; None when what it made before still holds."""
    marker = read_marker(folder.done)
    if marker is None:
        if folder.done.exists():
            return "its DONE cannot be read"
        return "the attempt before did not finish" if folder.attempts() else NEVER
    if marker.fingerprint != wanted.digest:
        return difference(marker.ingredients, wanted.ingredients)
    trouble = damage(marker, folder.out, cache.hashes)
    return f"it is marked DONE, but {trouble}" if trouble else None


def _why_not_cached(stage: Stage, wanted: Fingerprint, cache: Cache) -> str:
    near = cache.newest(stage.name)
    if near is None:
        return NEVER
    changes = difference(near.ingredients, wanted.ingredients)
    return f"{NEVER} like this; against the newest {stage.name} in the cache, {changes}"


def assert_code(run: Run) -> None:
    """The packages must come from the run's own code: a queued job never sees later edits."""
    for package in ("hpcrl", "workflows"):
        spec = importlib.util.find_spec(package)
        found = Path(spec.origin).resolve() if spec and spec.origin else None
        if found is None or not found.is_relative_to(run.folder.code.resolve()):
            raise UserError(f"{package} comes from {found}, not from {run.folder.code}: put that first on PYTHONPATH")


def assert_alone(run: Run, stage: Stage, pid: int) -> None:
    """Raises StopRequested when a job of the stage lives; attempts that ended are no matter."""
    attempts = run.folder.stage(stage.name).attempts()
    if not attempts or read_next(attempts[-1]) is not None:
        return
    job = JobRecord.read(attempts[-1])
    if job and job.process and job.process.pid != pid and job.process.alive():
        raise StopRequested(f"{stage.name}: attempt {attempts[-1].number} is running already (pid {job.process.pid})")


def _set_stale_aside(run: Run, stage: Stage, wanted: Fingerprint) -> None:
    """What attempts at another fingerprint left must not be continued; what those at this one left must."""
    folder = run.folder.stage(stage.name)
    jobs = [record for attempt in folder.attempts() if (record := JobRecord.read(attempt)) and record.fingerprint]
    if not jobs or jobs[-1].fingerprint == wanted.digest:
        return
    number = len(jobs)
    while (away := folder.path / "stale" / str(number)).exists():
        number += 1
    for path in [folder.out, *(run.path / name for name in stage.state)]:
        if path.exists():
            away.mkdir(parents=True, exist_ok=True)
            shutil.move(path, away / path.name)
    logger.info("%s: what was made with other code, config or inputs is now in %s", stage.name, away)


def _new_attempt(folder: StageFolder) -> AttemptFolder:
    number = max((attempt.number for attempt in folder.attempts()), default=0) + 1
    while True:
        attempt = folder.attempt(number)
        try:
            attempt.path.mkdir(parents=True)
        except FileExistsError:
            number += 1
            continue
        folder.out.mkdir(exist_ok=True)
        return attempt


def finish(run: Run, stage: Stage, attempt: AttemptFolder, status: int) -> tuple[ExitCode, str]:
    """Record an attempt's end; DONE is written last, and only when what was promised is there.

    Returns the job's exit code, and what follows: `done`, `stop` or `again SECONDS`.
    """
    folder = run.folder.stage(stage.name)
    if status == 0 and (missing := missing_outputs(folder.out, stage.outputs)):
        logger.error("%s ended with 0 but did not make %s", stage.name, ", ".join(f"out/{name}" for name in missing))
        status = int(ExitCode.BUG)
    then = record_end(run, stage, attempt, status)
    if then.action == "done":
        _mark_done(run, stage, attempt)
    following = f"again {then.delay:g}" if then.action == "again" else then.action
    return ExitCode.of(status), following


def _mark_done(run: Run, stage: Stage, attempt: AttemptFolder) -> None:
    job = JobRecord.read(attempt)
    if job is None:
        raise UserError(f"{attempt.path}/job.json is gone: nobody can say what the outputs were made from")
    cache = Cache(run.run_root)
    folder = run.folder.stage(stage.name)
    marker = Marker(
        stage=stage.name,
        fingerprint=job.fingerprint,
        outputs=describe_outputs(folder.out, cache.hashes),
        ingredients=job.ingredients,
        attempt=attempt.number,
    )
    if stage.shared:
        try:
            cache.publish(marker, folder.out)
        except OSError as error:  # what is finished is finished, whether others can share it or not
            logger.warning("%s: its outputs could not be put into the cache: %s", stage.name, error)
    write_marker(folder.done, marker)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workflows.job", description=__doc__)
    parser.add_argument("act", choices=["begin", "finish"])
    parser.add_argument("--run", type=Path, required=True, help="run folder")
    parser.add_argument("--stage", required=True)
    parser.add_argument("--pid", type=int, default=os.getppid(), help="the job script's process")
    parser.add_argument("--attempt", type=Path, help="attempt folder, to finish")
    parser.add_argument("--status", type=int, help="exit status of the stage's command, to finish")
    given = parser.parse_args(arguments)
    run = Run.open(given.run)
    stage = run.stage(given.stage)
    if given.act == "begin":
        try:
            attempt = begin(run, stage, given.pid)
        except StopRequested:  # it was not this one's turn
            raise
        except Exception as error:
            with suppress(OSError):
                record_failed_begin(run, stage, given.pid, error)
            raise
        sys.stdout.write(f"{attempt.path}\n" if attempt else "")
        return 0
    code, following = finish(run, stage, AttemptFolder(given.attempt), given.status)
    sys.stdout.write(f"{following}\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(guarded(main))
