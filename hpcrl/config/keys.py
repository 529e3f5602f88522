"""Which keys the schema has, what type stands at each, and which are nearest to a wrong one."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hpcrl.config.schema import Config

Path = Sequence[str | int]


def dotted(path: Path) -> str:
    """The key as a person writes it: `trainer.total_epochs`, `workflow.stages.0`."""
    return ".".join(str(part) for part in path)


@functools.cache
def fields_of(section: type) -> dict[str, Any]:
    """Field name to resolved annotation of a config section."""
    hints = typing.get_type_hints(section, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(section)}


def field_docs(section: type) -> dict[str, str]:
    """Field name to the doc line under it, of the fields that have one."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, below in itertools.pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            docs[field.target.id] = inspect.cleandoc(str(ast.literal_eval(below.value)))
    return docs


def bare(annotation: Any) -> Any:
    """The annotation without `Annotated[…]` and without `| None`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [arg for arg in get_args(annotation) if arg is not type(None)]
        return bare(rest[0]) if len(rest) == 1 else annotation
    return annotation


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def annotation_at(path: Path, root: type = Config) -> Any | None:
    """The bare type at a key, through sections, dicts and list elements; None where the schema has no such key."""
    here: Any = root
    for part in path:
        origin, args = get_origin(here), get_args(here)
        if is_section(here):
            if part not in fields_of(here):
                return None
            here = bare(fields_of(here)[str(part)])
        elif origin is dict:
            here = bare(args[1])
        elif origin in (list, tuple) and str(part).isdigit():
            here = bare(args[0])
        else:
            return Any if here is Any else None
    return here


def _walk(section: type, prefix: str) -> Iterator[str]:
    for name, annotation in fields_of(section).items():
        yield prefix + name
        inner = bare(annotation)
        if is_section(inner):
            yield from _walk(inner, f"{prefix}{name}.")


@functools.cache
def all_keys() -> tuple[str, ...]:
    """Every key of the schema, sections included, in its order."""
    return tuple(_walk(Config, ""))


def nearest(given: str, known: Iterable[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """The names that are likest to the given one, best first."""
    return difflib.get_close_matches(given, list(known), n=count, cutoff=cutoff)


def nearest_keys(path: Path, count: int = 3) -> list[str]:
    """The keys that a wrong one may have meant: like it as a whole, or with a like last part in another section."""
    given, leaf = dotted(path), str(path[-1])

    def likeness(key: str) -> float:
        whole = difflib.SequenceMatcher(None, given, key).ratio()
        last = difflib.SequenceMatcher(None, leaf, key.rpartition(".")[2]).ratio()
        return max(whole, 0.95 * last) + 0.1 * whole

    ranked = sorted(((likeness(key), key) for key in all_keys()), key=lambda pair: -pair[0])
    return [key for score, key in ranked[:count] if score >= 0.72]


def allowed_values(annotation: Any) -> list[Any]:
    """The values of a Literal, or of a list's Literal elements; empty for any other type."""
    annotation = bare(annotation)
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return []


def accepts_text(annotation: Any) -> bool:
    """Whether the value of an override at this type is to be taken as it was typed."""
    return bare(annotation) is str or bare(annotation) == list[str]
