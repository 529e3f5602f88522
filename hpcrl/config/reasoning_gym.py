"""Names of the installed reasoning_gym's tasks, read from its source: importing its registry takes seconds."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

_REGISTERED = re.compile(r"register_dataset\(\s*([\w.]+|\"[^\"]+\"|'[^']+')\s*,")
_CONSTANT = re.compile(r"^(\w+)\s*=\s*[\"']([^\"']+)[\"']", re.MULTILINE)


@cache
def task_names() -> tuple[str, ...]:
    """All tasks in alphabetical order; empty where the package is not installed."""
    spec = importlib.util.find_spec("reasoning_gym")
    names: set[str] = set()
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in Path(folder).rglob("*.py"):
            names.update(_tasks_of(file.read_text(encoding="utf-8", errors="replace")))
    return tuple(sorted(names))


def _tasks_of(source: str) -> list[str]:
    if "register_dataset(" not in source:
        return []
    constants = dict(_CONSTANT.findall(source))
    given = _REGISTERED.findall(source)
    return [name[1:-1] for name in given if name[0] in "\"'"] + [constants[name] for name in given if name in constants]
