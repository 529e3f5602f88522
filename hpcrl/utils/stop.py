"""One flag for every way in which an attempt is asked to end: the stop file and the deadline."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hpcrl.config.seam import AttemptFolder, StopRequested


@dataclass
class StopFlag:
    """Polls an attempt's `stop` and `deadline` files, at most every `interval` seconds."""

    attempt: AttemptFolder
    margin: float = 0.0
    """Seconds before the deadline at which to stop; the trainer raises it to its measured save time and step time."""
    interval: float = 0.2
    _reason: str | None = None
    _polled: float = field(default=-1e9)

    def reason(self) -> str | None:
        """Why to stop, or None; once given it stays."""
        now = time.monotonic()
        if self._reason is None and now - self._polled >= self.interval:
            self._polled = now
            self._reason = self._read()
        return self._reason

    def check(self) -> None:
        """Raises StopRequested when an orderly end was asked for."""
        reason = self.reason()
        if reason is not None:
            raise StopRequested(f"stopped by request: {reason}")

    def _read(self) -> str | None:
        try:
            return self.attempt.stop.read_text().strip() or "stop file"
        except FileNotFoundError:
            pass
        try:
            left = float(self.attempt.deadline.read_text()) - time.time()
        except (FileNotFoundError, ValueError):  # absent, or caught in the middle of a write: the next poll reads it
            return None
        return f"deadline in {max(left, 0):.0f} s" if left <= self.margin else None
