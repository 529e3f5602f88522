"""What pydantic finds wrong with a config, said in one line each for the person who wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hpcrl.config.keys import (
    allowed_values,
    annotation_at,
    bare,
    dotted,
    fields_of,
    is_section,
    nearest,
    nearest_keys,
)
from hpcrl.config.schema import Config
from hpcrl.config.seam import UserError

_NUMBER_TYPES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


class ConfigError(UserError):
    """The config cannot work; the message names every problem found, with the nearest right keys or values."""

    def __init__(self, problems: Iterable[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        if len(self.problems) == 1:
            message = f"config: {self.problems[0]}"
        else:
            message = "\n  - ".join([f"the config has {len(self.problems)} problems:", *self.problems])
        super().__init__(message)


def shown(value: Any) -> str:
    """A value as it would be typed, shortened."""
    text = {True: "true", False: "false", None: "null"}.get(value) if value is None or isinstance(value, bool) else None
    text = text or repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def offer(names: Iterable[str], before: str = "; nearest: ") -> str:
    names = list(names)
    return before + ", ".join(names) if names else ""


def _unknown(path: tuple[str | int, ...], given: Any, root: type, before: str) -> str:
    parent = annotation_at(path[:-1], root)
    there = fields_of(parent) if is_section(parent) else {}
    candidates = nearest_keys(path) if root is Config else nearest(str(path[-1]), there)
    if not candidates and there:
        where = before + dotted(path[:-1]) if path[1:] else before.rstrip(".") or "the top level"
        return f"{before}{dotted(path)}: unknown key; {where} has {', '.join(there)}"
    value = "" if isinstance(given, dict) else f" (given {shown(given)})"
    return f"{before}{dotted(path)}: unknown key{value}{offer(candidates)}"


def _not_allowed(key: str, given: Any, allowed: list[Any]) -> str:
    names = [str(value) for value in allowed]
    close = nearest(str(given), names, count=2, cutoff=0.5)
    if len(names) == 1:
        return f"{key}: {shown(given)} is not allowed; allowed: {names[0]}"
    return f"{key}: {shown(given)} is not allowed; allowed: {', '.join(names)}{offer(close)}"


def wanted(annotation: Any) -> str:
    """A type in a person's words."""
    annotation = bare(annotation)
    if annotation in _NUMBER_TYPES:
        return _NUMBER_TYPES[annotation]
    if get_origin(annotation) is list:
        return f"a list of {wanted(get_args(annotation)[0])}, written [a, b]"
    if get_origin(annotation) is tuple:
        return f"a list of {len(get_args(annotation))} values, written [a, b]"
    if get_origin(annotation) is dict:
        return "a mapping, written {key: value}"
    if is_section(annotation):
        return f"a section with the keys {', '.join(fields_of(annotation))}"
    values = allowed_values(annotation)
    return f"one of {', '.join(str(value) for value in values)}" if values else "another type"


def describe(error: ErrorDetails, root: type = Config, before: str = "") -> str:
    """One line for one of pydantic's findings: the key, what was given, what is allowed, what is nearest.

    Args:
        root: the section that was validated.
        before: put before every key, to say where that section stands (`prepare.splits.train.0.options.`).
    """
    kind, given = error["type"], error["input"]
    path = tuple(part for part in error["loc"] if part != "[key]")
    key, context = before + dotted(path), error.get("ctx", {})
    annotation = annotation_at(path, root)
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return _unknown(path, given, root, before)
    if "[key]" in error["loc"]:
        outer = annotation_at(path[:-1], root)
        return _not_allowed(before + dotted(path[:-1]), given, allowed_values(get_args(outer)[0]))
    if kind == "value_error":  # of a validator of ours, which says all
        return f"{key}: {context['error']}"
    if kind in ("too_short", "string_too_short"):
        return f"{key}: {shown(given)} is not allowed; it must not be empty"
    if kind in ("missing", "missing_argument"):
        return f"{key}: missing; it has no default and must be given ({wanted(annotation)})"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{key}: {shown(given)} is not allowed; it must be {words} {context[bound]}"
    if kind == "literal_error":
        return _not_allowed(key, given, allowed_values(annotation))
    if bare(annotation) is str and isinstance(given, int | float) and not isinstance(given, bool):
        hint = " (a time like 24:00:00 is a number to YAML unless it is quoted)" if key.endswith(".time") else ""
        return f'{key}: the number {given} stands where text is needed; put it in quotes: "{given}"{hint}'
    return f"{key}: {shown(given)} is not allowed; it must be {wanted(annotation)}"


def describe_all(failure: ValidationError, root: type = Config, before: str = "") -> list[str]:
    return [describe(error, root, before) for error in failure.errors(include_url=False)]
