"""States from what the disk says; what is not known is never success."""

from __future__ import annotations

from typing import Any

import pytest

from workflows.state import AttemptView, RunView, StageView, eta, run_state

STOP, AGAIN = {"action": "stop", "why": ""}, {"action": "again", "delay": 5.0}


def _attempt(alive: bool | None = False, kind: str | None = None, following: Any = None, **more: Any) -> AttemptView:
    record = {"kind": kind, "reason": "so it was", "next": following} if kind else None
    return AttemptView(number=2, alive=alive, record=record, **more)


def _state(stage: StageView, driver: bool | None = False) -> tuple[str, str]:
    shown = run_state(RunView("e/r", "/r", driver, (stage,))).stages[0]
    return shown.state, shown.reason


@pytest.mark.parametrize(
    ("attempt", "driver", "state"),
    [
        (_attempt(alive=True), True, "RUNNING"),
        (_attempt(alive=False), False, "STOPPED"),
        (_attempt(alive=None), None, "UNKNOWN"),
        (_attempt(alive=True, kind="done"), True, "RUNNING"),  # recorded by the stage, not yet by the job
        (_attempt(kind="done", following={"action": "done"}), False, "STOPPED"),  # but there is no DONE
        (_attempt(kind="stopped", following=STOP), False, "STOPPED"),
        (_attempt(kind="infrastructure", following=STOP), False, "FAILED"),
        (_attempt(kind="infrastructure", following=STOP, stop="person: Ctrl-C"), False, "STOPPED"),
        (_attempt(kind="infrastructure", following=AGAIN), True, "WAITING"),
        (_attempt(kind="infrastructure", following=AGAIN), False, "STOPPED"),
        (_attempt(kind="user_error", following=STOP), False, "FAILED"),
        (_attempt(kind="no_space", following=STOP), False, "FAILED"),
        (_attempt(kind="bug", following=STOP), False, "FAILED"),
        (None, True, "WAITING"),
        (None, False, "STOPPED"),
        (None, None, "UNKNOWN"),
    ],
)
def test_the_state_of_a_stage(attempt: AttemptView | None, driver: bool | None, state: str) -> None:
    assert _state(StageView("train", attempt=attempt), driver)[0] == state


def test_done_counts_only_with_its_content() -> None:
    assert _state(StageView("train", done=True)) == ("DONE", "")
    state, reason = _state(StageView("train", trouble="out/model is missing"))
    assert state == "STOPPED"
    assert "out/model is missing" in reason


def test_children_wait_for_their_parents() -> None:
    failed = StageView("sft", attempt=_attempt(kind="bug", following=STOP))
    child = StageView("train", parents=("sft",))
    shown = run_state(RunView("e/r", "/r", False, (failed, child)))
    assert [s.state for s in shown.stages] == ["FAILED", "WAITING"]
    assert shown.stages[1].reason == "for sft"
    assert shown.state == "FAILED"


@pytest.mark.parametrize(
    ("stages", "state"),
    [
        ((StageView("a", done=True), StageView("b", done=True)), "DONE"),
        ((StageView("a", done=True), StageView("b", attempt=_attempt(alive=None))), "UNKNOWN"),
        ((StageView("a", done=True), StageView("b", attempt=_attempt(alive=True))), "RUNNING"),
        ((StageView("a", done=True), StageView("b")), "STOPPED"),
        ((), "WAITING"),
    ],
)
def test_the_state_of_a_run(stages: tuple[StageView, ...], state: str) -> None:
    assert run_state(RunView("e/r", "/r", False, stages)).state == state


def test_steps_reward_and_eta_come_from_heartbeat_and_metrics() -> None:
    beat = {"phase": "rollout", "step": 10, "total_steps": 40, "time": 0.0}
    metrics = ({"step": 9, "timing_s/step": 2.0, "critic/score/mean": 0.5}, {"step": 10, "timing_s/step": 4.0})
    stage = StageView("train", attempt=AttemptView(1, alive=True, heartbeat=beat))
    shown = run_state(RunView("e/r", "/r", True, (stage,), metrics)).stages[0]
    assert (shown.step, shown.total_steps, shown.reward, shown.eta_seconds) == (10, 40, 0.5, 90.0)
    assert shown.phase == "rollout"


def test_no_eta_without_steps() -> None:
    assert eta(1, 10, []) is None
    assert eta(None, 10, [{"timing_s/step": 1.0}]) is None
