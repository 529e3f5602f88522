"""What follows an attempt's end: the exit code table and its budgets, as pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcrl.config.seam import ExitCode

LONGEST_DELAY = 600.0
PERSON = "person: "
"""How the text of a stop file begins when a person asked: such a stop is never undone by a requeue."""


@dataclass(frozen=True)
class Ended:
    """How one attempt ended."""

    code: ExitCode
    submission: str
    """The submission that the attempt belongs to; its budget is counted within it."""
    saved_new: bool
    """Whether it saved a step that no attempt before it had."""
    stop: str | None = None
    """Text of its stop file."""


@dataclass(frozen=True)
class Budget:
    """Attempts in a row that may end so with nothing new saved, and the first delay in seconds."""

    infrastructure: int = 3
    stopped: int = 3
    delay: float = 5.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Budget:
        cluster = config["cluster"]
        return cls(
            infrastructure=cluster["max_infrastructure_attempts"],
            stopped=cluster["max_stopped_attempts"],
            delay=cluster["retry_delay"],
        )


@dataclass(frozen=True)
class Next:
    """What follows."""

    action: Literal["done", "again", "stop"]
    delay: float = 0.0
    """Seconds before the next attempt."""
    why: str = ""


def seconds_of(limit: str | None) -> float | None:
    """A wall-time limit as sbatch writes it, in seconds; None for none and for 0, which is no limit there.

    minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds.
    """
    if not limit:
        return None
    days, dash, clock = limit.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:
        hours, minutes, seconds = (0, *parts, 0)[:3] if len(parts) < 3 else parts
    total = int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
    return float(total) or None


def follow(history: Sequence[Ended], budget: Budget) -> Next:
    """What follows the last of a stage's attempts."""
    last = history[-1]
    if last.code is ExitCode.DONE:
        return Next("done")
    if (last.stop or "").startswith(PERSON):
        return Next("stop", why=(last.stop or "").removeprefix(PERSON))
    if last.code not in (ExitCode.INFRASTRUCTURE, ExitCode.STOPPED):
        return Next("stop", why=f"{last.code.kind} is not tried again by itself")
    allowed = budget.infrastructure if last.code is ExitCode.INFRASTRUCTURE else budget.stopped
    in_row = _fruitless(history)
    if in_row >= allowed:
        return Next("stop", why=f"{in_row} attempts in a row ended as {last.code.kind} with nothing new saved")
    return Next("again", delay=min(budget.delay * 2 ** max(in_row - 1, 0), LONGEST_DELAY))


def _fruitless(history: Sequence[Ended]) -> int:
    """How many of the newest attempts ended alike, in one submission, with nothing new saved."""
    last = history[-1]
    count = 0
    for attempt in reversed(history):
        if attempt.saved_new or attempt.code is not last.code or attempt.submission != last.submission:
            break
        count += 1
    return count
