"""The key-value cache of the hf engine: every row stands at its own length, from column 0, in one buffer a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache

COLUMN_STEP = 64
"""Buffers grow in multiples of so many columns."""


class RaggedCache(Cache):
    """Keys and values of rows of different lengths.

    Layer i holds a tensor (2, rows, heads, capacity + 1, head_dim): keys and values. A row's token at position p
    stands in column p; what lies behind a row's length is hidden by the attention mask that the caller gives. The
    last column takes what padding writes.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.rows = rows
        self.capacity = _rounded(capacity)
        self.buffers: list[torch.Tensor] = []
        self._row_index: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None
        self._width = 0

    def place(self, positions: torch.Tensor, width: int) -> None:
        """Say where the next forward pass writes and what it reads.

        Args:
            positions: (rows, S) int64, each token's position; negative: padding.
            width: columns that attention sees, from column 0.
        """
        self._reserve(width)
        padded = positions.shape[1] > 1
        self._positions = torch.where(positions < 0, self.capacity, positions) if padded else positions
        self._row_index = torch.arange(self.rows, device=positions.device)[:, None]
        self._width = width

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (rows, heads, S, head_dim) keys and values; returns (rows, heads, width, head_dim) for attention."""
        if layer_idx == len(self.buffers):
            rows, heads, _, head_dim = key_states.shape
            self.buffers.append(key_states.new_zeros(2, rows, heads, self.capacity + 1, head_dim))
        keys, values = self.buffers[layer_idx]
        keys[self._row_index, :, self._positions] = key_states.transpose(1, 2)
        values[self._row_index, :, self._positions] = value_states.transpose(1, 2)
        return keys[:, :, : self._width], values[:, :, : self._width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._width

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._width, 0

    def _reserve(self, columns: int) -> None:
        if columns <= self.capacity:
            return
        capacity = _rounded(max(columns, self.capacity * 3 // 2))
        for i, old in enumerate(self.buffers):
            shape = (*old.shape[:3], capacity + 1, old.shape[4])
            self.buffers[i] = old.new_zeros(shape)
            self.buffers[i][:, :, :, : self.capacity] = old[:, :, :, : self.capacity]
        self.capacity = capacity

    def select(self, rows: torch.Tensor) -> None:
        """Keep only these rows, in this order; a row may be taken several times."""
        self.buffers = [buffer.index_select(1, rows) for buffer in self.buffers]
        self.rows = len(rows)

    def extend(self, other: RaggedCache) -> None:
        """Append another cache's rows."""
        self._reserve(other.capacity)
        other._reserve(self.capacity)
        pairs = zip(self.buffers, other.buffers, strict=True)
        self.buffers = [torch.cat([mine, theirs], dim=1) for mine, theirs in pairs]
        self.rows += other.rows

    def take(self, row: int, length: int) -> list[torch.Tensor]:
        """A row's keys and values, per layer a copy (2, heads, length, head_dim)."""
        return [buffer[:, row, :, :length].clone() for buffer in self.buffers]

    @classmethod
    def of(cls, kept: Sequence[list[torch.Tensor]], capacity: int) -> RaggedCache:
        """A cache whose rows are what `take` gave."""
        cache = cls(len(kept), max(capacity, *(layers[0].shape[2] for layers in kept)))
        for layer, first in enumerate(kept[0]):
            heads, _, head_dim = first.shape[1:]
            buffer = first.new_zeros(2, len(kept), heads, cache.capacity + 1, head_dim)
            for row, layers in enumerate(kept):
                buffer[:, row, :, : layers[layer].shape[2]] = layers[layer]
            cache.buffers.append(buffer)
        return cache


def _rounded(columns: int) -> int:
    return -(-columns // COLUMN_STEP) * COLUMN_STEP
