"""One small process above each local job: it ends the job in order when asked, and to the last process in any case.

`python -m workflows.schedulers.supervisor RUN STAGE GRACE`, in a session of its own. Its stdin is a pipe from the
driver: a line `stop REASON` asks for an orderly end, `hasten` for a quick one, and the pipe's end says that the driver
died. It stands to the job as Slurm does: the signal goes to the batch shell, then TERM, then KILL to what is left.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from hpcrl.config.seam import RunFolder, StageFolder
from workflows.budget import PERSON
from workflows.processes import ProcessId, adopt_orphans, descendants, end, reap, send

POLL = 0.1
ORPHANED_GRACE = 5.0
"""Seconds for an orderly end when nobody is there any more to wait for it."""
TERM_GRACE = 5.0
"""Seconds between TERM and KILL."""
SHELL_GRACE = 20.0
"""Further seconds in which the job's shell may record how the attempt ended."""


@dataclass
class Supervisor:
    stage: StageFolder
    grace: float
    shell: int = 0
    status: int | None = None
    reason: str | None = None
    """Why the job is to end; None while it is not."""
    term_at: float = float("inf")
    known: set[str] = field(default_factory=set)
    """Attempts that were there before the job began."""
    _buffer: bytes = b""
    _terminated: bool = False
    _doomed: set[int] | None = None

    def run(self) -> int:
        """Run the job script to its end; returns its status, with 128 + signal where it was killed."""
        self.known = {attempt.path.name for attempt in self.stage.attempts()}
        arguments = ["bash", str(self.stage.job_script)]
        with open(os.devnull, "rb") as nothing:
            actions = [(os.POSIX_SPAWN_DUP2, nothing.fileno(), 0)]
            self.shell = os.posix_spawnp(
                "bash", arguments, os.environ, file_actions=actions, setsigdef=[signal.SIGINT, signal.SIGTERM]
            )
        listening = [0]
        while self.status is None:
            readable = select.select(listening, [], [], POLL)[0]
            if readable and not self._hear():
                listening = []
            self._collect()
            if self.reason is not None and self.status is None:
                self._press()
        end(lambda: descendants(os.getpid()))
        return self.status

    def ask_stop(self, reason: str, grace: float) -> None:
        """Ask for an orderly end; a later call can only hasten it."""
        if self.reason is None:
            self.reason = reason
            self._mark_stop()
            send([self.shell], signal.SIGUSR1)
        self.term_at = min(self.term_at, time.monotonic() + grace)

    def _hear(self) -> bool:
        """Read what the driver says; False when it is gone."""
        data = os.read(0, 4096)
        if not data:
            self.ask_stop("submit died", min(self.grace, ORPHANED_GRACE))
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            word, _, reason = line.decode(errors="replace").partition(" ")
            self.ask_stop(reason or "asked to", self.grace if word == "stop" else 0.0)
        return True

    def _mark_stop(self) -> None:
        """The stop file of the attempt that runs; made again at each poll, since the attempt may begin later."""
        for attempt in self.stage.attempts():
            if attempt.path.name not in self.known and not attempt.stop.exists() and not attempt.exit_record.exists():
                attempt.stop.write_text(f"{PERSON}{self.reason}\n")

    def _press(self) -> None:
        self._mark_stop()
        now = time.monotonic()
        below = [pid for pid in descendants(os.getpid()) if pid != self.shell]
        if now >= self.term_at and not self._terminated:
            self._terminated = True
            send(below, signal.SIGTERM)
        if now >= self.term_at + TERM_GRACE:
            if self._doomed is None:  # and not what the shell starts after it, which records the attempt's end
                self._doomed = set(below)
            send(self._doomed.intersection(below), signal.SIGKILL)
        if now >= self.term_at + TERM_GRACE + SHELL_GRACE:
            send([*below, self.shell], signal.SIGKILL)

    def _collect(self) -> None:
        status = reap().get(self.shell)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            self.status = code if code >= 0 else 128 - code


def main() -> int:
    run, stage, grace = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    adopt_orphans()
    me = ProcessId.of(os.getpid())
    assert me is not None
    with (run / "sessions.jsonl").open("a") as file:
        file.write(json.dumps(me.to_dict()) + "\n")
    supervisor = Supervisor(RunFolder(run).stage(stage), grace)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: supervisor.ask_stop(f"the supervisor got {signal.Signals(n).name}", grace))
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
