"""The rule that scores a data_source; which there are stands in `hpcrl.config.rewards`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

from hpcrl.config.rewards import REWARD_RULES, find_rule, no_rule
from hpcrl.config.seam import UserError

ScoreFunction = Callable[..., float | dict[str, Any]]


def register_score_function(pattern: str, module: str) -> None:
    """Score rows whose data_source matches `pattern` (`*` stands for anything) by `compute_score` of `module`."""
    REWARD_RULES[pattern] = module
    find_score_function.cache_clear()


@cache
def find_score_function(data_source: str) -> ScoreFunction:
    """The rule of a data_source.

    Raises:
        UserError: there is none; the message names those that exist.
    """
    module = find_rule(data_source)
    if module is None:
        raise UserError(no_rule(data_source))
    return importlib.import_module(module).compute_score


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> float | dict[str, Any]:
    """Score a response by the rule of its data_source.

    Args:
        data_source: names the rule.
        solution_str: the response's text.
        ground_truth: as the row holds it.
        extra_info: the row's further facts.
        **kwargs: options of the rule.

    Returns:
        the score, or a dict with `score` and further values to record.
    """
    return find_score_function(data_source)(solution_str, ground_truth, extra_info=extra_info, **kwargs)
