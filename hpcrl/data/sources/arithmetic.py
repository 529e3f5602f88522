"""Questions like `12 + 34 = ?`, made for experiments in which a tiny model learns to call a calculator."""

from __future__ import annotations

import json
import operator
import zlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from hpcrl.config.seam import UserError
from hpcrl.data.sources.base import Generator, RawRow, chat
from hpcrl.utils.seed import generator, stable_key

DATA_SOURCE = "hpcrl/arithmetic"
TEST_SPLITS = ("test", "val", "validation", "eval")
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
ENUMERABLE = 100_000
"""Up to so many questions are listed and taken in a shuffled order, none twice before all were asked."""

GIVE_UP = [{"role": "assistant", "content": "#### ?"}]
"""A demonstration that answers at once, without the tool. What it says is always the same: a random number there would
only teach noise, and the tiny model would take twice as long to learn to copy operands."""

Question = tuple[int, str, int]


class Arithmetic(Generator):
    """Row i is a function of the seed and i; a question belongs to the test split or to the others by its hash."""

    def open(self) -> int:
        self.has_messages = self.options.demonstrations
        return self.rows_wanted()

    def read(self, start: int, stop: int) -> Iterator[RawRow]:
        for i in range(start, stop):
            yield RawRow(f"arithmetic row {i}", self._row(i))

    def _row(self, i: int) -> dict[str, Any]:
        rng = generator(stable_key("arithmetic", self.seed, i))
        a, op, b = question = self._question(i, rng)
        text, answer = f"{a} {op} {b} = ?", str(OPERATIONS[op](a, b))
        row: dict[str, Any] = {
            "prompt": chat(text, self.options),
            "ground_truth": answer,
            "data_source": DATA_SOURCE,
            "ability": "math",
            "question": text,
            "answer": answer,
        }
        if self.options.demonstrations:
            right = rng.random() < self.options.right_fraction
            row["messages"] = [*row["prompt"], *(call_and_answer(question) if right else GIVE_UP)]
        return row

    @property
    def _is_test(self) -> bool:
        return (self.config.split or self.split) in TEST_SPLITS

    def _mine(self, question: Question) -> bool:
        """Whether this split may ask the question; a commuted sum or product is the same question."""
        a, op, b = question
        if op != "-":
            a, b = min(a, b), max(a, b)
        in_test = zlib.crc32(f"{a} {op} {b}".encode()) < self.options.test_fraction * 2**32
        return in_test == self._is_test

    @cached_property
    def _all(self) -> list[Question]:
        """Every question of this split, or nothing when there are too many to list."""
        n, ops = self.options.max_operand, self.options.ops
        if n * n * len(ops) > ENUMERABLE:
            return []
        every = ((a, op, b) for op in ops for a in range(n) for b in range(n))
        return [question for question in every if self._mine(question)]

    def _question(self, i: int, rng: np.random.Generator) -> Question:
        if self._all:
            turn, place = divmod(i, len(self._all))
            return self._all[self._order(turn)[place]]
        n, ops = self.options.max_operand, self.options.ops
        for _ in range(100_000):
            a, b, op = int(rng.integers(n)), int(rng.integers(n)), ops[int(rng.integers(len(ops)))]
            if self._mine((a, op, b)):
                return a, op, b
        raise UserError(
            f"{self.where}: no question is left for split {self.split!r}: raise options.max_operand, "
            "or move options.test_fraction away from its end"
        )

    def _order(self, turn: int) -> np.ndarray:
        if getattr(self, "_turn", None) != turn:
            self._turn = turn
            self._permutation = generator(stable_key("order", self.seed, turn)).permutation(len(self._all))
        return self._permutation

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_all", "_turn", "_permutation")}


def call_and_answer(question: Question) -> list[dict[str, str]]:
    """A call of the calculator, its answer, and the final answer."""
    a, op, b = question
    answer = str(OPERATIONS[op](a, b))
    call = json.dumps({"name": "calculator", "arguments": {"expression": f"{a}{op}{b}"}})
    return [
        {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
        {"role": "tool", "content": answer},
        {"role": "assistant", "content": f"#### {answer}"},
    ]
