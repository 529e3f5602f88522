"""Packing: every token once, sequences apart, shares even."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl import DataProto
from hpcrl.workers.engine.packing import balance, fill_rows, micro_batches, pack, split_to

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=40)


def padded(lengths: list[tuple[int, int]], prompt_length: int = 6, response_length: int = 5) -> DataProto:
    rows = len(lengths)
    attention = torch.zeros(rows, prompt_length + response_length, dtype=torch.int64)
    for i, (prompt, response) in enumerate(lengths):
        attention[i, prompt_length - prompt : prompt_length + response] = 1
    tokens = torch.arange(attention.numel()).view(attention.shape) + 1
    return DataProto.from_dict(
        {
            "prompts": tokens[:, :prompt_length],
            "responses": tokens[:, prompt_length:],
            "attention_mask": attention,
        }
    )


@given(LENGTHS)
def test_rows_hold_every_sequence_once(lengths: list[int]) -> None:
    rows = fill_rows(lengths)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert max(sum(lengths[i] for i in row) for row in rows) <= max(max(lengths), 2 * 256)


@given(LENGTHS, st.integers(1, 5))
def test_shares_are_even_in_count_and_close_in_tokens(lengths: list[int], ranks: int) -> None:
    shares = balance(lengths, ranks)
    assert sorted(i for share in shares for i in share) == list(range(len(lengths)))
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1
    tokens = [sum(lengths[i] for i in share) for share in shares]
    assert max(tokens) - min(tokens) <= 2 * max(lengths)


@given(LENGTHS, st.integers(300, 1000))
def test_micro_batches_keep_order_and_budget(lengths: list[int], budget: int) -> None:
    parts = micro_batches(lengths, size=None, max_tokens=budget)
    assert [i for part in parts for i in part] == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in part) <= budget for part in parts)


@given(LENGTHS, st.integers(1, 7))
def test_micro_batches_of_a_size(lengths: list[int], size: int) -> None:
    parts = micro_batches(lengths, size=size, max_tokens=None)
    assert all(len(part) == size for part in parts[:-1]) and 1 <= len(parts[-1]) <= size


@given(st.integers(1, 6), st.integers(0, 12))
def test_ranks_can_be_brought_to_the_same_number_of_passes(rows: int, more: int) -> None:
    parts = micro_batches([10] * rows, size=4, max_tokens=None)
    split = split_to(parts, len(parts) + more)
    assert len(split) == len(parts) + more
    assert [i for part in split for i in part] == list(range(rows))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=12))
def test_scatter_brings_each_target_back_to_its_place(lengths: list[tuple[int, int]]) -> None:
    data = padded(lengths)
    packed = pack(data)
    back = packed.scatter(packed.targets)
    valid = data.batch["attention_mask"][:, 6:].bool()
    assert torch.equal(back[valid], data.batch["responses"][valid])
    assert not back[~valid].any()


def test_sequences_of_a_row_do_not_see_each_other() -> None:
    packed = pack(padded([(3, 2), (2, 2)]))
    assert packed.input_ids.shape[0] == 1
    mask = packed.attention_mask()[0, 0]
    assert not mask[5:9, :5].any() and mask[5, 5] and not mask[5, 6]
    assert packed.position_ids[0, :9].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
