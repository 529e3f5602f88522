"""Training without padding: sequences laid end to end in rows, balanced over ranks, cut into micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hpcrl.protocol import DataProto

ROW_LENGTH = 256
"""Short sequences share rows of about this many tokens: attention over a row costs its length squared."""


@dataclass(frozen=True)
class PackedBatch:
    """Sequences laid end to end in rows of shape (rows, row_length), and where each response token lies in them."""

    input_ids: torch.Tensor
    """(rows, row_length) int64."""
    position_ids: torch.Tensor
    """(rows, row_length) int64, starting anew with each sequence."""
    segment_ids: torch.Tensor
    """(rows, row_length) int64: which sequence of its row a token belongs to; -1 on what is left over."""
    targets: torch.Tensor
    """(rows, row_length) int64: the token that follows within the sequence; 0 where none does."""
    row_index: torch.Tensor
    """(tokens,) row of the position that predicts each response token, in batch order."""
    column_index: torch.Tensor
    """(tokens,) column of that position."""
    valid: torch.Tensor
    """(bs, response_length) bool: where the response tokens lie in the padded batch, in the same order."""

    def attention_mask(self) -> torch.Tensor:
        """(rows, 1, row_length, row_length) bool: causal, within a sequence; a left-over position sees itself."""
        same = self.segment_ids[:, :, None] == self.segment_ids[:, None, :]
        return (same & torch.ones(same.shape[1:], dtype=torch.bool).tril())[:, None]

    def scatter(self, values: torch.Tensor) -> torch.Tensor:
        """Values at every position, rows one after another, to the padded batch, (bs, response_length); 0 elsewhere."""
        padded = values.new_zeros(self.valid.shape)
        picked = values.view(self.targets.shape)[self.row_index, self.column_index]
        return padded.masked_scatter(self.valid.to(values.device), picked)


def pack(data: DataProto) -> PackedBatch:
    """Pack the rows of a batch with prompts (bs, P), responses (bs, R) and attention_mask (bs, P + R)."""
    attention = data.batch["attention_mask"].bool()
    tokens = torch.cat([data.batch["prompts"], data.batch["responses"]], dim=1)
    response_length = data.batch["responses"].shape[1]
    valid = attention[:, -response_length:]
    sequences = [row[mask] for row, mask in zip(tokens, attention, strict=True)]
    response_lengths = valid.sum(dim=1).tolist()
    rows = fill_rows([len(sequence) for sequence in sequences])
    row_length = max(sum(len(sequences[i]) for i in row) for row in rows)

    shape = (len(rows), row_length)
    input_ids, position_ids, targets = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
    segment_ids = torch.full(shape, -1, dtype=torch.int64)
    places: list[tuple[torch.Tensor, torch.Tensor]] = [(torch.empty(0), torch.empty(0))] * len(sequences)
    for r, row in enumerate(rows):
        start = 0
        for segment, i in enumerate(row):
            sequence, end = sequences[i], start + len(sequences[i])
            input_ids[r, start:end] = sequence
            position_ids[r, start:end] = torch.arange(len(sequence))
            segment_ids[r, start:end] = segment
            targets[r, start : end - 1] = sequence[1:]
            columns = torch.arange(end - 1 - response_lengths[i], end - 1)
            places[i] = (torch.full_like(columns, r), columns)
            start = end
    return PackedBatch(
        input_ids,
        position_ids,
        segment_ids,
        targets,
        row_index=torch.cat([row for row, _ in places]),
        column_index=torch.cat([column for _, column in places]),
        valid=valid,
    )


def fill_rows(lengths: Sequence[int]) -> list[list[int]]:
    """Put sequences into rows, longest first, each into the first row with room (first fit decreasing)."""
    longest = max(lengths)
    capacity = longest * max(1, -(-ROW_LENGTH // longest))
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for r, free in enumerate(room):
            if lengths[i] <= free:
                rows[r].append(i)
                room[r] -= lengths[i]
                break
        else:
            rows.append([i])
            room.append(capacity - lengths[i])
    return rows


def balance(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Deal sequences to ranks so that each gets about the same number of tokens and the same count (within one)."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for turn, start in enumerate(range(0, len(order), ranks)):
        dealt = order[start : start + ranks]
        for rank, i in enumerate(dealt):
            shares[rank if turn % 2 == 0 else ranks - 1 - rank].append(i)
    return [sorted(share) for share in shares]


def micro_batches(lengths: Sequence[int], *, size: int | None, max_tokens: int | None) -> list[list[int]]:
    """Cut sequences, in order, into micro-batches of `size` sequences or of at most `max_tokens` tokens."""
    parts: list[list[int]] = []
    tokens = 0
    for i, length in enumerate(lengths):
        full = parts and (len(parts[-1]) >= size if size is not None else tokens + length > (max_tokens or length))
        if not parts or full:
            parts.append([])
            tokens = 0
        parts[-1].append(i)
        tokens += length
    return parts


def split_to(parts: list[list[int]], count: int) -> list[list[int]]:
    """Split the largest micro-batches until there are `count`; single sequences left over give empty ones.

    Every rank must make the same number of passes, since each pass is a collective.
    """
    parts = [list(part) for part in parts]
    while len(parts) < count:
        largest = max(range(len(parts)), key=lambda i: len(parts[i])) if parts else -1
        if largest < 0 or len(parts[largest]) < 2:
            parts.append([])
            continue
        part = parts[largest]
        parts[largest : largest + 1] = [part[: len(part) // 2], part[len(part) // 2 :]]
    return parts
