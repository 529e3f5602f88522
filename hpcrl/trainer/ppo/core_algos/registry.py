"""Functions by name: how policy losses and advantage estimators are found, and how users add theirs."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def register_in(registry: dict[str, Callable[..., Any]], name: str | Enum, what: str) -> Callable[[F], F]:
    """Decorator that adds a function; the same name for another function is a ValueError."""
    key = str(name.value) if isinstance(name, Enum) else name

    def add(function: F) -> F:
        known = registry.get(key)
        if known is not None and known is not function:
            raise ValueError(f"{what} {key} has already been registered: {known} vs {function}")
        registry[key] = function
        return function

    return add
