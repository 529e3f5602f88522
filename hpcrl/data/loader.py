"""Batches in an order that depends on seed and epoch alone, so that a run resumes at the very row."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from hpcrl.config.seam import UserError
from hpcrl.protocol import DataProto
from hpcrl.utils.seed import stable_key

logger = logging.getLogger(__name__)


class Rows(Protocol):
    """A data set of dict rows, all with the same keys."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict[str, Any]: ...


def epoch_order(rows: int, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """The order of an epoch, int64 of shape (rows,): a pure function of its arguments, the same on every machine."""
    if not shuffle:
        return np.arange(rows)
    # Raw Philox words are specified; Generator.permutation may change between NumPy versions.
    words = np.random.Philox(key=stable_key("epoch", seed, epoch)).random_raw(rows)
    return np.argsort(words, kind="stable")


def collate(rows: Sequence[dict[str, Any]]) -> DataProto:
    """Rows as a batch of object arrays."""
    return DataProto.from_dict(non_tensors={key: [row[key] for row in rows] for key in rows[0]})


class ResumableLoader:
    """An endless iterator of batches over the epochs; its state is a position, not a stream of random numbers."""

    def __init__(
        self, dataset: Rows, batch_size: int, shuffle: bool = True, seed: int = 0, drop_last: bool = True
    ) -> None:
        """Raises UserError when there is not one whole batch."""
        if len(dataset) == 0 or (drop_last and len(dataset) < batch_size):
            raise UserError(
                f"the training data has {len(dataset)} rows, less than one batch of {batch_size} "
                "(train_batch_size): lower it, or add data"
            )
        self.dataset, self.batch_size, self.shuffle, self.seed = dataset, batch_size, shuffle, seed
        self.drop_last = drop_last
        self.epoch, self.position = 0, 0
        self._ordered: tuple[int, np.ndarray] | None = None

    @property
    def steps_per_epoch(self) -> int:
        full, rest = divmod(len(self.dataset), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def __iter__(self) -> Iterator[DataProto]:
        return self

    def __next__(self) -> DataProto:
        order = self._order()
        rows = [self.dataset[int(i)] for i in order[self.position : self.position + self.batch_size]]
        self.position += len(rows)
        self._turn_over()
        return collate(rows)

    def state_dict(self) -> dict[str, int | bool]:
        """Where the next batch starts: `position` rows into `epoch`."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "rows": len(self.dataset),
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: dict[str, int | bool]) -> None:
        """Continue where a loader over the same data stood; a position at an epoch's end is the next one's start.

        Raises:
            UserError: the data has another number of rows, so positions mean something else.
        """
        if state.get("rows", len(self.dataset)) != len(self.dataset):
            raise UserError(
                f"the checkpoint was written with {state['rows']} rows of training data, now there are "
                f"{len(self.dataset)}: give the same data, or start anew with trainer.resume_mode=disable"
            )
        for key in ("seed", "shuffle"):
            if state.get(key, getattr(self, key)) != getattr(self, key):
                logger.warning(
                    "data.%s was %s when the checkpoint was written and is %s now: rows of this epoch may come twice "
                    "or not at all", key, state[key], getattr(self, key)
                )  # fmt: skip
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._turn_over()

    def _turn_over(self) -> None:
        left = len(self.dataset) - self.position
        if left <= 0 or (self.drop_last and left < self.batch_size):
            self.epoch, self.position = self.epoch + 1, 0

    def _order(self) -> np.ndarray:
        if self._ordered is None or self._ordered[0] != self.epoch:
            self._ordered = (self.epoch, epoch_order(len(self.dataset), self.seed, self.epoch, self.shuffle))
        return self._ordered[1]


def sequential_batches(dataset: Rows, batch_size: int | None = None) -> Iterator[DataProto]:
    """Every row once, in order, the last batch possibly smaller; None: all rows as one batch."""
    size = batch_size or max(len(dataset), 1)
    for start in range(0, len(dataset), size):
        yield collate([dataset[i] for i in range(start, min(start + size, len(dataset)))])
