"""DataProto: rows stay together whatever is done to them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcrl import DataProto


def batch(rows: int, start: int = 0) -> DataProto:
    numbers = list(range(start, start + rows))
    return DataProto.from_dict(
        {"x": torch.tensor(numbers)[:, None].expand(-1, 3).clone()},
        {"uid": [str(n) for n in numbers], "tags": [[n, n] for n in numbers]},
        {"step": 1},
    )


def uids(data: DataProto) -> list[str]:
    assert data.batch["x"][:, 0].tolist() == [int(uid) for uid in data.non_tensor_batch["uid"]]
    return list(data.non_tensor_batch["uid"])


def test_rows_of_unequal_number_are_refused() -> None:
    with pytest.raises(ValueError, match="same number of rows"):
        DataProto.from_dict({"x": torch.zeros(2, 1)}, {"uid": ["a"]})


def test_an_int_gives_a_row_and_lists_stay_lists() -> None:
    item = batch(3)[1]
    assert item.batch["x"].tolist() == [1, 1, 1]
    assert item.non_tensor_batch["tags"] == [1, 1]


@given(st.lists(st.integers(0, 4), max_size=9))
def test_any_index_keeps_rows_together(rows: list[int]) -> None:
    assert uids(batch(5)[rows]) == [str(row) for row in rows]


def test_boolean_masks_and_slices() -> None:
    data = batch(4)
    assert uids(data[np.array([True, False, True, False])]) == ["0", "2"]
    assert uids(data[1:3]) == ["1", "2"]


@given(st.integers(1, 4), st.integers(1, 4))
def test_chunks_concatenate_to_the_whole(parts: int, size: int) -> None:
    data = batch(parts * size)
    assert uids(DataProto.concat(data.chunk(parts))) == uids(data)


def test_a_chunk_that_does_not_divide_says_so() -> None:
    with pytest.raises(ValueError, match="5 rows into 2"):
        batch(5).chunk(2)


def test_repeat_interleaves_or_tiles() -> None:
    assert uids(batch(2).repeat(2)) == ["0", "0", "1", "1"]
    assert uids(batch(2).repeat(2, interleave=False)) == ["0", "1", "0", "1"]


def test_union_refuses_a_field_that_differs() -> None:
    data = batch(2)
    more = data.union(DataProto.from_dict({"y": torch.ones(2)}))
    assert set(more.batch) == {"x", "y"}
    with pytest.raises(ValueError, match="'x'"):
        data.union(DataProto.from_dict({"x": torch.zeros(2, 3)}))


def test_concat_refuses_different_fields() -> None:
    with pytest.raises(ValueError, match="different fields"):
        DataProto.concat([batch(1), batch(1).select(["x"], [])])


def test_reorder_is_in_place() -> None:
    data = batch(3)
    data.reorder([2, 0, 1])
    assert uids(data) == ["2", "0", "1"]
