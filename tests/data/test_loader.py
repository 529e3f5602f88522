"""The loader's laws: any interruption gives the uninterrupted sequence; every epoch is a permutation."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.config.seam import UserError
from hpcrl.data.loader import ResumableLoader, epoch_order, sequential_batches

RECORDED = [6, 0, 2, 1, 5, 7, 4, 3]


class Numbers:
    """Row i is i."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert 0 <= index < self.rows
        return {"uid": f"train/{index}", "number": index}


def take(loader: ResumableLoader, steps: int) -> list[list[int]]:
    return [list(next(loader).non_tensor_batch["number"]) for _ in range(steps)]


@given(
    rows=st.integers(1, 40),
    batch=st.integers(1, 40),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**31),
    cuts=st.lists(st.integers(0, 5), max_size=8),
)
@settings(max_examples=200, deadline=None)
def test_any_interruption_gives_the_uninterrupted_sequence(
    rows: int, batch: int, shuffle: bool, drop_last: bool, seed: int, cuts: list[int]
) -> None:
    batch = min(batch, rows)

    def fresh() -> ResumableLoader:
        return ResumableLoader(Numbers(rows), batch, shuffle, seed, drop_last)

    whole = take(fresh(), sum(cuts) + 3)
    loader, pieces = fresh(), []
    for steps in cuts:
        pieces += take(loader, steps)
        state = json.loads(json.dumps(loader.state_dict()))
        loader = fresh()
        loader.load_state_dict(state)
    assert pieces + take(loader, 3) == whole


@given(rows=st.integers(1, 40), batch=st.integers(1, 40), seed=st.integers(0, 9), epoch=st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_an_epoch_takes_every_row_at_most_once(rows: int, batch: int, seed: int, epoch: int) -> None:
    batch = min(batch, rows)
    loader = ResumableLoader(Numbers(rows), batch, True, seed)
    take(loader, loader.steps_per_epoch * epoch)
    assert loader.state_dict()["epoch"] == epoch
    seen = [number for numbers in take(loader, loader.steps_per_epoch) for number in numbers]
    assert len(seen) == len(set(seen)) == rows // batch * batch
    assert loader.state_dict()["epoch"] == epoch + 1


def test_every_batch_without_drop_last_covers_the_rows() -> None:
    loader = ResumableLoader(Numbers(10), 4, True, 1, drop_last=False)
    assert loader.steps_per_epoch == 3
    assert sorted(number for numbers in take(loader, 3) for number in numbers) == list(range(10))


def test_a_position_at_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    for end in (8, 10):  # after the last whole batch, and after the rows that no batch takes
        loader = ResumableLoader(Numbers(10), 4, True, 3)
        loader.load_state_dict({"epoch": 2, "position": end, "rows": 10, "seed": 3, "shuffle": True})
        expected = epoch_order(10, 3, 3, True)[:4].tolist()
        assert take(loader, 1) == [expected]


def test_the_order_is_specified() -> None:
    # Recorded: the order of a run must not change under it, whatever version of NumPy it resumes with.
    assert epoch_order(8, 0, 0, True).tolist() == RECORDED
    assert sorted(epoch_order(8, 0, 1, True).tolist()) == list(range(8))
    assert epoch_order(8, 0, 1, True).tolist() != RECORDED
    assert epoch_order(8, 1, 0, True).tolist() != RECORDED
    assert epoch_order(4, 0, 5, False).tolist() == [0, 1, 2, 3]


def test_other_data_is_refused_on_resume() -> None:
    loader = ResumableLoader(Numbers(10), 2)
    state = loader.state_dict()
    with pytest.raises(UserError, match="10 rows of training data, now there are 12"):
        ResumableLoader(Numbers(12), 2).load_state_dict(state)


def test_less_than_a_batch_is_refused() -> None:
    with pytest.raises(UserError, match="3 rows, less than one batch of 4"):
        ResumableLoader(Numbers(3), 4)
    with pytest.raises(UserError):
        ResumableLoader(Numbers(0), 4, drop_last=False)


def test_batches_are_object_arrays() -> None:
    batch = next(ResumableLoader(Numbers(4), 2, shuffle=False))
    assert batch.non_tensor_batch["uid"].dtype == np.dtype(object)
    assert list(batch.non_tensor_batch["uid"]) == ["train/0", "train/1"]
    assert not batch.batch


def test_sequential_batches_take_every_row_once() -> None:
    assert [list(b.non_tensor_batch["number"]) for b in sequential_batches(Numbers(5), 2)] == [[0, 1], [2, 3], [4]]
    assert [len(b) for b in sequential_batches(Numbers(5))] == [5]
    assert list(sequential_batches(Numbers(0))) == []
