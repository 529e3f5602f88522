"""DataProto: the batch that crosses rooms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass
class DataProtoItem:
    """One row of a DataProto."""

    batch: dict[str, torch.Tensor]
    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any]


@dataclass
class DataProto:
    """Tensors of shape (bs, …) and object arrays of shape (bs,) under names, and facts of the whole batch."""

    batch: dict[str, torch.Tensor] = field(default_factory=dict)
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {name: len(value) for name, value in [*self.batch.items(), *self.non_tensor_batch.items()]}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"all fields of a DataProto must have the same number of rows, got {lengths}")

    @classmethod
    def from_dict(
        cls,
        tensors: dict[str, torch.Tensor] | None = None,
        non_tensors: dict[str, Sequence[Any] | np.ndarray] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> DataProto:
        """A batch of tensors and of any other values (kept as object arrays)."""
        objects = {name: as_object_array(values) for name, values in (non_tensors or {}).items()}
        return cls(dict(tensors or {}), objects, dict(meta_info or {}))

    def __len__(self) -> int:
        for value in (*self.batch.values(), *self.non_tensor_batch.values()):
            return len(value)
        return 0

    def __getitem__(self, key: int | slice | Sequence[int] | np.ndarray | torch.Tensor) -> Any:
        """An int gives a DataProtoItem; a slice, index array or boolean mask a DataProto."""
        if isinstance(key, int | np.integer):
            return DataProtoItem(
                {name: tensor[key] for name, tensor in self.batch.items()},
                {name: values[key] for name, values in self.non_tensor_batch.items()},
                self.meta_info,
            )
        if not isinstance(key, slice):
            key = np.asarray(key)
            key = np.flatnonzero(key) if key.dtype == bool else key.astype(np.int64)
        rows = key if isinstance(key, slice) else torch.from_numpy(key)
        return DataProto(
            {name: tensor[rows] for name, tensor in self.batch.items()},
            {name: values[key] for name, values in self.non_tensor_batch.items()},
            dict(self.meta_info),
        )

    def select(
        self, batch_keys: Sequence[str] | None = None, non_tensor_batch_keys: Sequence[str] | None = None
    ) -> DataProto:
        """Only the named fields; None: all of that kind."""
        batch_keys = self.batch.keys() if batch_keys is None else batch_keys
        object_keys = self.non_tensor_batch.keys() if non_tensor_batch_keys is None else non_tensor_batch_keys
        return DataProto(
            {name: self.batch[name] for name in batch_keys},
            {name: self.non_tensor_batch[name] for name in object_keys},
            dict(self.meta_info),
        )

    def union(self, other: DataProto) -> DataProto:
        """The fields of both. A tensor under one name in both must be equal in both."""
        for name in self.batch.keys() & other.batch.keys():
            if not torch.equal(self.batch[name], other.batch[name]):
                raise ValueError(f"union: field {name!r} stands in both batches with different values")
        return DataProto(
            self.batch | other.batch,
            self.non_tensor_batch | other.non_tensor_batch,
            self.meta_info | other.meta_info,
        )

    def repeat(self, repeat_times: int, interleave: bool = True) -> DataProto:
        """Every row `repeat_times` times: a a b b (interleave) or a b a b."""
        rows = np.arange(len(self))
        rows = np.repeat(rows, repeat_times) if interleave else np.tile(rows, repeat_times)
        return self[rows]

    def reorder(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> None:
        """Put the rows into another order, in place."""
        ordered = self[indices]
        self.batch, self.non_tensor_batch = ordered.batch, ordered.non_tensor_batch

    def chunk(self, chunks: int) -> list[DataProto]:
        """Equal consecutive parts; the number of rows must divide."""
        if len(self) % chunks:
            raise ValueError(f"cannot cut {len(self)} rows into {chunks} equal chunks: pad or choose another size")
        size = len(self) // chunks
        return [self[i * size : (i + 1) * size] for i in range(chunks)]

    @staticmethod
    def concat(parts: Sequence[DataProto]) -> DataProto:
        """The rows of all parts, which must have the same fields; meta_info is the first one's."""
        first = parts[0]
        for part in parts[1:]:
            if part.batch.keys() != first.batch.keys() or part.non_tensor_batch.keys() != first.non_tensor_batch.keys():
                raise ValueError(
                    f"concat: parts have different fields: {sorted(first.batch) + sorted(first.non_tensor_batch)} "
                    f"and {sorted(part.batch) + sorted(part.non_tensor_batch)}"
                )
        return DataProto(
            {name: torch.cat([part.batch[name] for part in parts]) for name in first.batch},
            {name: np.concatenate([part.non_tensor_batch[name] for part in parts]) for name in first.non_tensor_batch},
            dict(first.meta_info),
        )


def as_object_array(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """An array of shape (bs,) of Python objects; nested lists are not turned into further dimensions."""
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array
