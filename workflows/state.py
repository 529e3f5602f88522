"""States of stages and runs: pure functions over one reading of the disk. What is not known is never success."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["DONE", "RUNNING", "STOPPED", "FAILED", "WAITING", "UNKNOWN"]
RETRIED = ("user_error", "bug")
"""Kinds of end that only `retry` starts again."""


@dataclass(frozen=True)
class AttemptView:
    """What an attempt's folder says."""

    number: int
    alive: bool | None
    """Whether its job lives; None where that cannot be seen from here."""
    record: Mapping[str, Any] | None = None
    """exit.json."""
    heartbeat: Mapping[str, Any] | None = None
    stop: str | None = None
    """Text of the stop file."""


@dataclass(frozen=True)
class StageView:
    """What a stage's folder says."""

    name: str
    parents: tuple[str, ...] = ()
    done: bool = False
    """DONE is there, and so is what it lists."""
    trouble: str | None = None
    """What is wrong with a DONE that does not count."""
    attempt: AttemptView | None = None
    """The newest."""


@dataclass(frozen=True)
class RunView:
    """One reading of a run folder."""

    name: str
    path: str
    driver_alive: bool | None
    """Whether whoever runs the stages lives; None where that cannot be seen from here."""
    stages: tuple[StageView, ...]
    metrics: tuple[Mapping[str, Any], ...] = ()
    """The newest lines of metrics.jsonl, oldest first."""


@dataclass(frozen=True)
class StageState:
    """A stage as it is shown."""

    stage: str
    state: State
    reason: str = ""
    kind: str = ""
    """How its newest attempt ended, where it ended."""
    attempt: int | None = None
    phase: str | None = None
    step: int | None = None
    total_steps: int | None = None
    reward: float | None = None
    eta_seconds: float | None = None


@dataclass(frozen=True)
class RunState:
    """A run as it is shown."""

    run: str
    path: str
    state: State
    stages: tuple[StageState, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_state(view: RunView) -> RunState:
    """The state of a run and of each of its stages."""
    stages: list[StageState] = []
    for stage in view.stages:
        stages.append(_shown(stage, view, {s.stage: s for s in stages}))
    return RunState(view.name, view.path, overall([s.state for s in stages]), tuple(stages))


def overall(states: Sequence[State]) -> State:
    """The state of a run from those of its stages."""
    worst: tuple[State, ...] = ("RUNNING", "UNKNOWN", "FAILED", "STOPPED")
    for state in worst:
        if state in states:
            return state
    return "DONE" if states and all(state == "DONE" for state in states) else "WAITING"


def _shown(stage: StageView, view: RunView, before: Mapping[str, StageState]) -> StageState:
    state, reason = stage_state(stage, view.driver_alive, before)
    attempt = stage.attempt
    beat = (attempt.heartbeat if attempt else None) or {}
    record = (attempt.record if attempt else None) or {}
    step, total = _int(beat.get("step")), _int(beat.get("total_steps"))
    metrics = view.metrics if stage.name == "train" else ()
    return StageState(
        stage=stage.name,
        state=state,
        reason=reason,
        kind=str(record.get("kind") or ""),
        attempt=attempt.number if attempt else None,
        phase=str(beat["phase"]) if state == "RUNNING" and beat.get("phase") else None,
        step=step,
        total_steps=total,
        reward=_last(metrics, "critic/score/mean"),
        eta_seconds=eta(step, total, metrics) if state == "RUNNING" else None,
    )


def stage_state(stage: StageView, driver_alive: bool | None, before: Mapping[str, StageState]) -> tuple[State, str]:
    """State and reason of one stage; `before` holds those of the stages ahead of it."""
    if stage.done:
        return "DONE", ""
    attempt = stage.attempt
    if attempt is not None:
        return _by_attempt(stage, attempt, driver_alive)
    if stage.trouble:
        return "STOPPED", f"marked DONE, but {stage.trouble}; `resume` makes it again"
    waiting = [name for name in stage.parents if name in before and before[name].state != "DONE"]
    if waiting:
        return "WAITING", f"for {', '.join(waiting)}"
    if driver_alive is None:
        return "UNKNOWN", "it is driven from another host"
    return ("WAITING", "starts next") if driver_alive else ("STOPPED", "nobody runs it; `resume` does")


def _by_attempt(stage: StageView, attempt: AttemptView, driver_alive: bool | None) -> tuple[State, str]:
    following = (attempt.record or {}).get("next")
    if following is None:
        if attempt.alive is None:
            return "UNKNOWN", "its job is on another host"
        if attempt.alive:
            return "RUNNING", f"stopping: {attempt.stop}" if attempt.stop else ""
        if driver_alive:
            return "RUNNING", "its job is gone; the scheduler takes care of it"
        return "STOPPED", "its job is gone without a record (killed, or the machine was restarted)"
    record = attempt.record or {}
    kind, reason = str(record.get("kind")), str(record.get("reason") or "")
    if kind == "done":
        missing = stage.trouble or "DONE is missing"
        return "STOPPED", f"{missing}; `resume` makes it again"
    if following.get("action") == "again":
        if driver_alive:
            return "WAITING", f"for another attempt, since {reason}"
        return "STOPPED", f"{reason}; nobody runs it"
    if kind in ("stopped",):
        return "STOPPED", reason
    if (attempt.stop or "").startswith("person: "):
        return "STOPPED", (attempt.stop or "").removeprefix("person: ")
    why = following.get("why")
    return "FAILED", f"{kind}: {reason}" + (f" [{why}]" if why and kind == "infrastructure" else "")


def eta(step: int | None, total: int | None, metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds that the steps which are left take, by the median of the newest ones."""
    seconds = [float(m["timing_s/step"]) for m in metrics if isinstance(m.get("timing_s/step"), int | float)]
    if step is None or total is None or not seconds:
        return None
    return max(total - step, 0) * statistics.median(seconds[-20:])


def _last(metrics: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next((float(m[name]) for m in reversed(metrics) if isinstance(m.get(name), int | float)), None)


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) else None
