"""What follows an attempt's end."""

from __future__ import annotations

import pytest

from hpcrl.config.seam import ExitCode
from workflows.budget import Budget, Ended, follow, seconds_of

BUDGET = Budget(infrastructure=3, stopped=2, delay=5.0)


def _ended(status: int | None, saved_new: bool = False, submission: str = "a", stop: str | None = None) -> Ended:
    return Ended(ExitCode.of(status), submission, saved_new, stop)


@pytest.mark.parametrize(
    ("status", "action"),
    [(0, "done"), (75, "again"), (69, "again"), (137, "again"), (-9, "again"), (None, "again")]
    + [(78, "stop"), (73, "stop"), (1, "stop"), (2, "stop")],
)
def test_the_exit_code_table(status: int | None, action: str) -> None:
    assert follow([_ended(status)], BUDGET).action == action


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        *[("30", 1800), ("30:15", 1815), ("2:00:00", 7200), ("1-2", 93600), ("1-2:30", 95400), ("1-2:30:05", 95405)],
        *[("0", None), (None, None), ("0:02", 2)],
    ],
)
def test_a_limit_is_read_as_sbatch_reads_it(limit: str | None, seconds: int | None) -> None:
    assert seconds_of(limit) == seconds


@pytest.mark.parametrize("status", [75, 69, 143])
def test_a_persons_stop_is_never_undone(status: int) -> None:
    assert follow([_ended(status, stop="person: Ctrl-C")], BUDGET).action == "stop"
    assert follow([_ended(status, stop="scheduler: signal USR1")], BUDGET).action == "again"


def test_the_delay_grows_and_the_budget_ends() -> None:
    history = [_ended(69)]
    assert follow(history, BUDGET).delay == 5
    history.append(_ended(None))
    assert follow(history, BUDGET).delay == 10
    history.append(_ended(137))
    assert follow(history, BUDGET).action == "stop"
    assert "3 attempts in a row" in follow(history, BUDGET).why


def test_kinds_have_their_own_budgets() -> None:
    assert follow([_ended(69), _ended(69), _ended(75)], BUDGET).action == "again"
    assert follow([_ended(75), _ended(75)], BUDGET).action == "stop"


def test_progress_and_a_new_submission_renew_the_budget() -> None:
    spent = [_ended(69), _ended(69)]
    assert follow([*spent, _ended(69, saved_new=True)], BUDGET).action == "again"
    assert follow([*spent, _ended(69, submission="b")], BUDGET).action == "again"


def test_the_delay_has_a_limit() -> None:
    generous = Budget(infrastructure=100, delay=5.0)
    assert follow([_ended(69)] * 50, generous).delay == 600
