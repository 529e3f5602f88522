"""Tasks in processes of their own, through submitit: at most so many at a time, a dead one's task retried once."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hpcrl.config.seam import HpcrlError, InfrastructureError, NoSpaceError, StopRequested, UserError

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
ATTEMPTS = 2
POLL_SECONDS = 0.1
ERRORS: dict[str, type[HpcrlError]] = {
    cls.__name__: cls for cls in (UserError, InfrastructureError, NoSpaceError, StopRequested)
}


class Job(Protocol):
    """What is used of a submitit job."""

    job_id: str

    def done(self) -> bool: ...

    def result(self) -> Any: ...

    def cancel(self) -> None: ...


class Executor(Protocol):
    """What is used of a submitit executor."""

    def submit(self, fn: Callable[..., Any], *args: Any) -> Job: ...


def make_executor(folder: Path) -> Executor:
    """The executor of preparation: processes on this machine.

    Args:
        folder: where submitit keeps its files and the workers' logs.
    """
    from submitit import LocalExecutor

    executor = LocalExecutor(folder=folder)
    executor.update_parameters(timeout_min=60 * 24 * 365)  # the stage's own deadline and stop file decide
    return executor


def fan_out(
    work: Callable[[Task], Any],
    tasks: Sequence[Task],
    executor: Executor,
    num_workers: int,
    check: Callable[[], None],
    finished: Callable[[int, Any], None],
) -> None:
    """Run `work` on every task.

    Args:
        work: a picklable function.
        check: called while waiting; what it raises ends all workers.
        finished: called with (number of the task, result), in the order of completion.

    Raises:
        HpcrlError: what a worker raised, as it raised it.
        InfrastructureError: a worker died, and so did the second one with its task.
    """
    waiting = [(number, 1) for number in range(len(tasks))]
    running: dict[int, tuple[Job, int]] = {}
    try:
        while waiting or running:
            check()
            while waiting and len(running) < num_workers:
                number, attempt = waiting.pop(0)
                running[number] = (executor.submit(_guarded, work, tasks[number], os.getpid()), attempt)
            for number in [number for number, (job, _) in running.items() if job.done()]:
                job, attempt = running.pop(number)
                outcome = _outcome(job)
                if outcome is not None:
                    finished(number, _value(outcome))
                elif attempt < ATTEMPTS:
                    logger.warning("worker %s died with task %d; starting it again", job.job_id, number)
                    waiting.insert(0, (number, attempt + 1))
                else:
                    raise InfrastructureError(
                        f"{tasks[number]}: {ATTEMPTS} workers died with it, the last was {job.job_id}; {_log(job)}. "
                        "If there is no reason in it, memory ran out: lower prepare.num_workers"
                    )
            time.sleep(POLL_SECONDS)
    finally:
        for job, _ in running.values():
            job.cancel()


def _outcome(job: Job) -> tuple[str, Any] | None:
    """What `_guarded` returned; None when the process died before it could."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        return job.result()
    except UncompletedJobError:
        return None
    except FailedJobError as error:
        raise RuntimeError(f"worker {job.job_id} failed; {_log(job)}\n{error}") from error


def _value(outcome: tuple[str, Any]) -> Any:
    kind, value = outcome
    if kind in ERRORS:
        raise ERRORS[kind](value)
    return value


def _log(job: Any) -> str:
    """Where a worker's log is, and its last line."""
    path = job.paths.stderr if hasattr(job, "paths") else None
    if path is None or not path.exists():
        return "it left no log"
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "empty")
    return f"its log {path} ends with: {last[:300]}"


def _guarded(work: Callable[[Any], Any], task: Any, parent: int) -> tuple[str, Any]:
    """In the worker: errors for people as values, since submitit hands on only their traceback."""
    _leave_with(parent, socket.gethostname())
    try:
        return "result", work(task)
    except HpcrlError as error:
        kind = next((name for name, cls in ERRORS.items() if isinstance(error, cls)), None)
        if kind is None:
            raise
        return kind, str(error)


def _leave_with(parent: int, host: str) -> None:
    """End this process when the stage that started it is gone, however it went."""
    if os.environ.get("SUBMITIT_EXECUTOR") != "local":
        return

    def watch() -> None:
        while _alive(parent):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name=f"parent-{parent}@{host}").start()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
