"""Processes of a run: found by ancestry, by the token in their environment and by their session; ended to the last one.

Linux only: all of it is read from /proc.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TOKEN = "HPCRL_TOKEN"
"""Environment variable that marks every process of a run."""
SUBMISSION = "HPCRL_SUBMISSION"
"""Environment variable that tells one act of submitting or resuming from the next."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class ProcessId:
    """A process beyond doubt: a pid alone is reused."""

    pid: int
    start: int
    """Clock ticks from boot to its start."""
    host: str
    boot: str
    """The boot that the ticks count from."""

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process with this pid now; None when there is none."""
        entry = _stat(pid)
        return None if entry is None else cls(pid, entry.start, socket.gethostname(), boot_id())

    @classmethod
    def from_dict(cls, raw: Any) -> ProcessId | None:
        try:
            return cls(int(raw["pid"]), int(raw["start"]), str(raw["host"]), str(raw["boot"]))
        except (KeyError, TypeError, ValueError):
            return None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def alive(self) -> bool | None:
        """Whether it lives; None on another host, where nobody here can tell."""
        if self.host != socket.gethostname():
            return None
        entry = _stat(self.pid)
        return bool(self.boot == boot_id() and entry and entry.start == self.start and entry.state not in "ZX")


@dataclass(frozen=True)
class _Stat:
    pid: int
    state: str
    parent: int
    session: int
    start: int


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    rest = text.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return _Stat(pid, rest[0], int(rest[1]), int(rest[3]), int(rest[19]))


def _all() -> list[_Stat]:
    entries = (_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [entry for entry in entries if entry is not None and entry.state not in "ZX"]


def descendants(pid: int) -> list[int]:
    """Living processes below a process, children first."""
    return _below({pid}, _all())


def _below(roots: set[int], entries: list[_Stat]) -> list[int]:
    found: list[int] = []
    frontier = set(roots)
    while frontier:
        frontier = {e.pid for e in entries if e.parent in frontier} - roots - set(found)
        found += sorted(frontier)
    return found


def bearing(token: str, sessions: Iterable[ProcessId] = (), folder: Path | None = None) -> list[int]:
    """Our user's processes of a run: those that bear its token, their sessions and descendants; never this one's line.

    A process that rewrites its title loses its environment to readers (Ray's agents do, and they outlive a killed
    Ray). Such a one is known by its session: a recorded one of the run, whose leader is gone, with the process at
    work in the run's `folder`.
    """
    entries = [entry for entry in _all() if _owner(entry.pid) == os.geteuid()]
    marked = {e.pid for e in entries if _environment_has(e.pid, f"{TOKEN}={token}".encode())}
    leaders = {e.pid: e.start for e in entries}
    recorded = {s.pid for s in sessions if s.boot == boot_id() and leaders.get(s.pid, s.start) == s.start}
    led = {e.session for e in entries if e.pid in marked and (e.session in marked or e.session not in leaders)}
    ours = marked | {e.pid for e in entries if e.session in led}
    if folder is not None:
        ours |= {e.pid for e in entries if e.session in recorded and _works_in(e.pid, folder)}
    ours |= set(_below(ours, entries))
    return sorted(ours - _line(entries))


def _line(entries: list[_Stat]) -> set[int]:
    """This process and those above it."""
    parents = {entry.pid: entry.parent for entry in entries}
    pid, line = os.getpid(), {os.getpid()}
    while pid in parents and parents[pid] not in line:
        pid = parents[pid]
        line.add(pid)
    return line


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return None


def _environment_has(pid: int, entry: bytes) -> bool:
    try:
        return entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(folder)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each; those that are gone are no error."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def end(find: Callable[[], list[int]], grace: float = 2.0) -> int:
    """TERM all that `find` finds, KILL what is left after `grace` seconds; returns how many there were.

    `find` is asked again each time, since processes start others while they end.
    """
    seen = set(find())
    send(seen, signal.SIGTERM)
    deadline = time.monotonic() + grace
    patience = deadline + 30
    while (left := find()) and time.monotonic() < patience:
        seen |= set(left)
        if time.monotonic() >= deadline:
            send(left, signal.SIGKILL)
        reap()
        time.sleep(0.05)
    return len(seen)


def reap() -> dict[int, int]:
    """Collect ended children, adopted ones too: pid to wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Get a signal when the parent process dies."""
    _prctl(_PR_SET_PDEATHSIG, int(number))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
