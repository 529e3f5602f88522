"""What a source of prompts is: so many raw rows, any range of which can be read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpcrl.config.data import SourceConfig
from hpcrl.config.seam import UserError


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as a source gives it, before validation: fields named as by `columns`, or what is wrong with it."""

    place: str
    """Where the row stands: file:line, file:row or the like."""
    fields: dict[str, Any] | None
    problem: str = ""
    """Why there are no fields."""


class Source(ABC):
    """A source of one split. It is pickled to the processes that read parts of it, after `open`."""

    has_messages: bool = False
    """Whether rows carry `messages`, whole conversations for supervised training."""
    needs_ground_truth: bool = True
    """Whether a row without a ground truth is bad (conversations never need one)."""

    def __init__(self, config: SourceConfig, options: Any, split: str, seed: int, where: str) -> None:
        self.config, self.options, self.split, self.seed, self.where = config, options, split, seed, where

    @abstractmethod
    def open(self) -> int:
        """Find out how many raw rows there are (files are fetched and scanned here, once).

        Raises:
            UserError: there is nothing that can be read.
        """

    @abstractmethod
    def read(self, start: int, stop: int) -> Iterator[RawRow]:
        """The raw rows of [start, stop), streamed; the same rows whatever was read before."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What the rows depend on, as JSON values: seeds and options, or files with sizes and times."""

    @property
    def name(self) -> str:
        return self.config.source


class Generator(Source):
    """A source that makes its rows."""

    def rows_wanted(self) -> int:
        if self.config.rows is None:
            raise UserError(f"{self.where}.rows: the source {self.name} makes its rows; say how many")
        return self.config.rows

    def identity(self) -> dict[str, Any]:
        return {"source": self.name, "seed": self.seed, "options": repr(self.options), "rows": self.config.rows}


def chat(question: str, options: Any) -> list[dict[str, str]]:
    """A question as chat messages, with the source's system prompt and instruction."""
    content = f"{question}\n\n{options.instruction}" if options.instruction else question
    messages = [{"role": "user", "content": content}]
    return [{"role": "system", "content": options.system_prompt}, *messages] if options.system_prompt else messages
