"""Any task of reasoning_gym by its name (https://github.com/open-thought/reasoning-gym)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcrl.config.seam import UserError
from hpcrl.data.sources.base import Generator, RawRow, chat


class ReasoningGym(Generator):
    """Row i is entry i of the task's data set with the source's seed; its metadata is kept for the task's own scorer.

    Tasks without one right answer (graph_color, rush_hour, …) have an empty ground truth: metadata decides.
    """

    needs_ground_truth = False

    def open(self) -> int:
        rows = self.rows_wanted()
        self._make()
        return rows

    def _make(self) -> Any:
        """The task's data set."""
        import reasoning_gym

        task = self.options.task
        try:
            return reasoning_gym.create_dataset(
                task, size=self.config.rows, seed=self.seed, **self.options.task_options
            )
        except (AssertionError, TypeError, ValueError) as error:
            raise UserError(f"{self.where}.options of the task {task}: {error}") from error

    def read(self, start: int, stop: int) -> Iterator[RawRow]:
        dataset = self._make()
        for i in range(start, stop):
            yield self._row(dataset, i)

    def _row(self, dataset: Any, i: int) -> RawRow:
        place = f"reasoning_gym/{self.options.task} entry {i}"
        try:
            entry = dataset[i]
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            return RawRow(place, None, f"the task could not make it ({type(error).__name__})")
        fields = {
            "prompt": chat(entry["question"], self.options),
            "ground_truth": "" if entry["answer"] is None else str(entry["answer"]),
            "data_source": f"reasoning_gym/{self.options.task}",
            "ability": "reasoning",
            "question": entry["question"],
            "answer": None if entry["answer"] is None else str(entry["answer"]),
            "metadata": entry["metadata"],
        }
        return RawRow(place, fields)
