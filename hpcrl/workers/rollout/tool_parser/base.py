"""A parser finds the tool calls in a turn's text; a call that cannot be read becomes an error for the model."""

from __future__ import annotations

import difflib
import importlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from hpcrl.config.seam import UserError


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it; whether such a tool exists and takes these arguments is not looked at here."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class BadToolCall:
    """Something that was meant to be a call."""

    error: str
    """What is wrong with it, for the model to read."""


class ToolParser(ABC):
    """One way of writing tool calls."""

    @abstractmethod
    def parse(self, text: str) -> list[ToolCall | BadToolCall]:
        """The calls of a turn, in order; never raises, whatever the text."""


def call_of_json(text: str) -> ToolCall | BadToolCall:
    """The call that stands in `text` as {"name": …, "arguments": {…}}."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return BadToolCall(f"Invalid JSON in tool call: {reason}")
    if not _encodable(value):
        return BadToolCall("Invalid JSON in tool call: text that is not valid Unicode")
    if not isinstance(value, dict):
        return BadToolCall("Invalid tool call: it must be a JSON object with name and arguments")
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str) or not name:
        return BadToolCall("Invalid tool call: name must be the name of a tool")
    if not isinstance(arguments, dict):
        return BadToolCall(f"Invalid arguments for {name}: arguments must be a JSON object")
    return ToolCall(name, arguments)


def _encodable(value: Any) -> bool:
    """Whether no text in it holds lone surrogates, which JSON can escape but no tokenizer or file takes."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


_PARSERS = {"hermes": "hpcrl.workers.rollout.tool_parser.hermes:HermesParser"}


def register_tool_parser(name: str, target: str) -> None:
    """Make `target` ("package.module:Class") known as format `name`."""
    _PARSERS[name] = target


def get_tool_parser(name: str) -> ToolParser:
    """The parser of a format."""
    if name not in _PARSERS:
        near = difflib.get_close_matches(name, _PARSERS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"multi_turn.format: unknown tool call format {name!r}, known are {sorted(_PARSERS)}{hint}")
    module, _, attribute = _PARSERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()
