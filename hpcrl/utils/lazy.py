"""Hand names on from a package's `__init__` without importing what stands behind them (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def lazy_exports(
    package: str, targets: dict[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names live in other modules.

    Args:
        package: the package's `__name__`.
        targets: name -> module that defines it.
    """

    def __getattr__(name: str) -> Any:
        if name not in targets:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(targets[name]), name)

    def __dir__() -> list[str]:
        return sorted(targets)

    return __getattr__, __dir__, sorted(targets)
