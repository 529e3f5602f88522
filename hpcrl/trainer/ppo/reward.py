"""The reward manager that the config describes."""

from __future__ import annotations

import asyncio
import difflib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hpcrl.config import as_config
from hpcrl.config.schema import Config
from hpcrl.config.seam import UserError
from hpcrl.rewards.registry import ScoreFunction, find_score_function
from hpcrl.workers.reward_manager.base import AbstractRewardManager
from hpcrl.workers.reward_manager.registry import get_reward_manager_cls

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from transformers import PreTrainedTokenizerBase


def load_reward_manager(
    config: Config | Mapping[str, Any] | DictConfig, tokenizer: PreTrainedTokenizerBase, **reward_kwargs: Any
) -> AbstractRewardManager:
    """Load and initialize a reward manager based on the configuration.

    Args:
        config: its reward_model, custom_reward_function and data.reward_fn_key are looked at; of a mapping or
            DictConfig, these parts are enough.
        tokenizer: turns responses into text.
        **reward_kwargs: further arguments of the manager, over those of `reward_model.reward_kwargs`; `num_examine`
            (0) is how many responses of each data_source are logged.

    Raises:
        UserError: unknown manager, arguments that it does not take, or a score function that cannot be used.
    """
    config = as_config(config, complete=False)
    name = config.reward_model.reward_manager
    try:
        manager_class = get_reward_manager_cls(name)
    except ValueError as error:
        raise UserError(f"reward_model.reward_manager: {error}") from error
    arguments: dict[str, Any] = {
        "num_examine": 0,
        "compute_score": load_score_function(config),
        "reward_fn_key": config.data.reward_fn_key,
        **config.reward_model.reward_kwargs,
        **reward_kwargs,
    }
    known = inspect.signature(manager_class).parameters
    unknown = sorted(arguments.keys() - known.keys())
    if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        free = sorted(known.keys() - {"tokenizer", "compute_score"})
        raise UserError(f"reward_model.reward_kwargs: {name} takes no {unknown}; it takes {free}")
    try:
        return manager_class(tokenizer, **arguments)
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(f"reward_model.reward_kwargs of {name}: {error}") from error


def check_reward(config: Config, data_sources: Iterable[str]) -> None:
    """Refuse a reward configuration that cannot work, for rows of these data sources. For the start of a stage."""
    load_reward_manager(config, None)  # type: ignore[arg-type]  # nothing is scored here
    if config.custom_reward_function.path is None:
        for data_source in sorted(set(data_sources)):
            find_score_function(data_source)


def load_score_function(config: Config) -> ScoreFunction | None:
    """The user's own function with its keyword arguments; None: the rule of each row's data_source."""
    custom = config.custom_reward_function
    if custom.path is None:
        return None
    module = _load_file(Path(custom.path).expanduser())
    function = getattr(module, custom.name, None)
    if not callable(function):
        named = [n for n, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
        near = difflib.get_close_matches(custom.name, named, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; it has {named}"
        raise UserError(f"custom_reward_function.name: {custom.path} has no function {custom.name!r}{hint}")
    arguments = ("data_source", "solution_str", "ground_truth", "extra_info", *custom.reward_kwargs)
    try:
        inspect.signature(function).bind(**dict.fromkeys(arguments))
    except TypeError as error:
        raise UserError(
            f"custom_reward_function: {custom.name} in {custom.path} cannot be called as "
            f"{custom.name}({', '.join(f'{argument}=…' for argument in arguments)}): {error}"
        ) from None
    score = partial(function, **custom.reward_kwargs)
    return partial(_run, score) if inspect.iscoroutinefunction(function) else score


def _run(function: Any, **arguments: Any) -> Any:
    """An async score function's value."""
    return asyncio.run(function(**arguments))


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"custom_reward_function.path: no file {path}")
    name = f"custom_reward_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"custom_reward_function.path: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"custom_reward_function.path: {path} could not be imported: {error!r}") from error
    return module
