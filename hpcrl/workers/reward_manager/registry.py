"""Reward managers by name (`reward_model.reward_manager`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from hpcrl.workers.reward_manager.base import AbstractRewardManager

_MANAGERS = {
    "naive": "hpcrl.workers.reward_manager.naive:NaiveRewardManager",
    "dapo": "hpcrl.workers.reward_manager.dapo:DAPORewardManager",
}

ManagerClass = TypeVar("ManagerClass", bound="type[AbstractRewardManager]")


def register(name: str) -> Callable[[ManagerClass], ManagerClass]:
    """Make a reward manager class known as `name`; ValueError when the name is another's."""

    def remember(manager_class: ManagerClass) -> ManagerClass:
        target = f"{manager_class.__module__}:{manager_class.__qualname__}"
        if _MANAGERS.setdefault(name, target) != target:
            raise ValueError(f"Reward manager {name} has already been registered: {_MANAGERS[name]}")
        return manager_class

    return remember


def get_reward_manager_cls(name: str) -> type[AbstractRewardManager]:
    """The class of a reward manager; ValueError for an unknown name."""
    if name not in _MANAGERS:
        raise ValueError(f"Unknown reward manager: {name}")
    module, _, attribute = _MANAGERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
