"""Runs the job scripts on this machine, a stage after another.

`python -m workflows.schedulers.local RUN LOCK_FD` drives a run in the background.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hpcrl.config.seam import AttemptFolder, ExitCode, UserError
from workflows.attempts import read_next, record_end, stop_text
from workflows.budget import PERSON, Budget, Next
from workflows.cli import guarded
from workflows.completion import standing_marker
from workflows.processes import SUBMISSION, TOKEN, ProcessId, adopt_orphans, bearing, descendants, end
from workflows.run import Run
from workflows.stages import Stage

logger = logging.getLogger("workflows.local")

POLL = 0.1
LAUNCHES = 3
"""Times that a job script is started again when it ends without having begun an attempt."""


def lock(run: Run) -> IO[str]:
    """The file that whoever drives the run keeps locked. Raises UserError when somebody does already."""
    file = run.driver.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(
            f"{run.name} is running already; `make status RUN={run.path.name}`, or cancel it first"
        ) from None
    return file


def driver_of(run: Run) -> ProcessId | None:
    """Who drives the run, or did last."""
    try:
        return ProcessId.from_dict(json.loads(run.driver.read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def sweep(run: Run) -> int:
    """End what an earlier drive of the run left behind on this machine; only with the run's lock held."""
    sessions = []
    if run.sessions.exists():
        lines = run.sessions.read_text().splitlines()
        sessions = [s for line in lines if (s := _session(line))]
    count = end(lambda: bearing(run.token, sessions, run.path))
    if count:
        logger.info("ended %d processes that an earlier attempt of %s had left", count, run.name)
    return count


def _session(line: str) -> ProcessId | None:
    try:
        return ProcessId.from_dict(json.loads(line))
    except json.JSONDecodeError:
        return None


@dataclass
class Driver:
    """One act of running a run: from the first stage that is not finished to the last."""

    run: Run
    echo: bool = True
    """Repeat the stages' output on stderr."""
    submission: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    stops: list[str] = field(default_factory=list)
    """Why to stop, for each time that it was asked."""

    def drive(self) -> ExitCode:
        """Run the stages; the exit code is that of the run. The caller holds the run's lock."""
        me = ProcessId.of(os.getpid())
        assert me is not None
        write_json_in_place(self.run.driver, me.to_dict())
        adopt_orphans()
        sweep(self.run)
        with self._signals():
            for stage in self.run.stages:
                code = self._stage(stage)
                if code is not ExitCode.DONE:
                    return code
        return ExitCode.DONE

    def _stage(self, stage: Stage) -> ExitCode:
        budget = Budget.of(self.run.config)
        launches = 0
        while not self.stops:
            before = self._newest(stage)
            status = self._job(stage)
            attempt = self._newest(stage)
            if attempt == before:
                if status == 0 and standing_marker(self.run.folder.stage(stage.name)):
                    return ExitCode.DONE
                launches += 1
                then = Next("again", budget.delay) if self._lost(status) and launches < LAUNCHES else Next("stop")
            else:
                assert attempt is not None
                then = read_next(attempt) or record_end(self.run, stage, attempt, status or None)
            code = ExitCode.of(status)
            if then.action == "done" and standing_marker(self.run.folder.stage(stage.name)):
                return ExitCode.DONE
            if then.action != "again":
                return self._give_up(stage, attempt if attempt != before else None, code, then)
            logger.info("%s: %s; trying again in %g s", stage.name, _reason(attempt) or f"status {status}", then.delay)
            self._pause(then.delay)
        return ExitCode.STOPPED

    def _lost(self, status: int) -> bool:
        return ExitCode.of(status) is ExitCode.INFRASTRUCTURE

    def _give_up(self, stage: Stage, attempt: AttemptFolder | None, code: ExitCode, then: Next) -> ExitCode:
        if attempt is not None and (stop_text(attempt) or "").startswith(PERSON):
            return ExitCode.STOPPED
        if self.stops:
            return ExitCode.STOPPED
        reason = _reason(attempt) or f"the job script ended with status {int(code)}"
        logger.error("%s failed (%s): %s%s", stage.name, code.kind, reason, f" [{then.why}]" if then.why else "")
        if attempt is not None and attempt.log.exists():
            logger.error("its output: %s", attempt.log)
        return code if code is not ExitCode.DONE else ExitCode.BUG

    def _newest(self, stage: Stage) -> AttemptFolder | None:
        attempts = self.run.folder.stage(stage.name).attempts()
        return attempts[-1] if attempts else None

    def _job(self, stage: Stage) -> int:
        """One run of the stage's job script under a supervisor; its status."""
        grace = str(self.run.config["cluster"]["stop_grace"])
        command = [sys.executable, "-m", "workflows.schedulers.supervisor", str(self.run.path), stage.name, grace]
        environment = os.environ | {TOKEN: self.run.token, SUBMISSION: self.submission}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(self.run.folder.code), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        log = Echo(self.run, stage.name, self.echo)
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            env=environment,
            cwd=self.run.folder.code,
            start_new_session=True,
        ) as supervisor:
            told = 0
            while supervisor.poll() is None:
                while told < len(self.stops):
                    self._tell(supervisor, told)
                    told += 1
                log.pump()
                time.sleep(POLL)
            log.pump(last=True)
        if supervisor.returncode < 0:  # it was killed, and its processes are ours now
            end(lambda: descendants(os.getpid()), grace=0)
            sweep(self.run)
        return supervisor.returncode

    def _tell(self, supervisor: subprocess.Popen[bytes], told: int) -> None:
        assert supervisor.stdin is not None
        line = f"stop {self.stops[0]}\n" if told == 0 else "hasten\n"
        try:
            supervisor.stdin.write(line.encode())
            supervisor.stdin.flush()
        except BrokenPipeError:  # it ended just now
            return
        grace = self.run.config["cluster"]["stop_grace"]
        logger.info(
            "%s: stopping in order%s",
            self.stops[0],
            f", at most {grace:g} s (once more: at once)" if told == 0 else " no longer: now",
        )

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stops:
            time.sleep(min(POLL, seconds))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        names: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "asked to stop (TERM)"}
        names[signal.SIGHUP] = "the terminal closed"
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup a closed terminal is no reason
            del names[signal.SIGHUP]
        old = {n: signal.signal(n, lambda number, _: self.stops.append(names[number])) for n in names}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def _reason(attempt: AttemptFolder | None) -> str | None:
    if attempt is None:
        return None
    try:
        return str(json.loads(attempt.exit_record.read_text()).get("reason"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


class Echo:
    """Repeats what a stage's new attempt writes to its output.log."""

    def __init__(self, run: Run, stage: str, enabled: bool) -> None:
        self.folder = run.folder.stage(stage)
        self.stage = stage
        self.enabled = enabled
        self.known = {attempt.path.name for attempt in self.folder.attempts()}
        self.file: IO[bytes] | None = None
        self.partial = b""

    def pump(self, last: bool = False) -> None:
        """Write the lines that came since."""
        if not self.enabled or not self._opened():
            return
        assert self.file is not None
        *lines, self.partial = (self.partial + self.file.read()).split(b"\n")
        if last:
            lines += [self.partial] if self.partial else []
            self.file.close()
        for line in lines:
            shown = line.rpartition(b"\r")[2] if not line.endswith(b"\r") else line.rstrip(b"\r")
            sys.stderr.write(f"{self.stage:>8} | {shown.decode(errors='replace')}\n")
        if lines:
            sys.stderr.flush()

    def _opened(self) -> bool:
        if self.file is None:
            new = [attempt for attempt in self.folder.attempts() if attempt.path.name not in self.known]
            if new and new[-1].log.exists():
                self.file = new[-1].log.open("rb")
        return self.file is not None


def write_json_in_place(path: Path, value: dict[str, object]) -> None:
    """Not by a rename: the file itself is what is locked."""
    with path.open("r+" if path.exists() else "w") as file:
        file.seek(0)
        file.truncate()
        json.dump(value, file)


def start_detached(run: Run, held: IO[str]) -> int:
    """Drive the run in the background; the lock goes over to the process whose pid is returned."""
    command = [sys.executable, "-m", "workflows.schedulers.local", str(run.path), str(held.fileno())]
    with (run.path / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[held.fileno()],
        )
    me = ProcessId.of(process.pid)
    if me is not None:
        write_json_in_place(run.driver, me.to_dict())
    held.close()
    return process.pid


def main() -> int:
    run = Run.open(Path(sys.argv[1]))
    held = os.fdopen(int(sys.argv[2]), "a+")
    os.set_inheritable(held.fileno(), False)
    logging.getLogger().handlers[0].setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    code = Driver(run, echo=False).drive()
    logger.info("ended: %s", code.kind)
    return int(code)


if __name__ == "__main__":
    sys.exit(guarded(main))
