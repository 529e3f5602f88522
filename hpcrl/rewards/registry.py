"""Which rule scores which data_source."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from hpcrl.config.seam import UserError

ScoreFunction = Callable[..., float | dict[str, Any]]

_RULES: dict[str, str] = {
    "hpcrl/arithmetic": "hpcrl.rewards.arithmetic",
    "openai/gsm8k": "hpcrl.rewards.gsm8k",
    "reasoning_gym/*": "hpcrl.rewards.reasoning_gym",
    "lighteval/MATH*": "hpcrl.rewards.math_boxed",
    "DigitalLearningGmbH/MATH-lighteval": "hpcrl.rewards.math_boxed",
    "HuggingFaceH4/MATH-500": "hpcrl.rewards.math_boxed",
    "math_boxed": "hpcrl.rewards.math_boxed",
    "math_boxed/*": "hpcrl.rewards.math_boxed",
    "exact_match": "hpcrl.rewards.exact_match",
    "exact_match/*": "hpcrl.rewards.exact_match",
}
"""data_source, or a pattern with *, to the module whose `compute_score` scores it; the first that matches counts."""


def register_score_function(pattern: str, module: str) -> None:
    """Score rows whose data_source matches `pattern` (`*` stands for anything) by `compute_score` of `module`."""
    _RULES[pattern] = module
    find_score_function.cache_clear()


@cache
def find_score_function(data_source: str) -> ScoreFunction:
    """The rule of a data_source.

    Raises:
        UserError: there is none; the message names those that exist.
    """
    for pattern, module in _RULES.items():
        if fnmatchcase(data_source, pattern):
            return importlib.import_module(module).compute_score
    near = difflib.get_close_matches(data_source, _RULES, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise UserError(
        f"no reward rule for data_source {data_source!r}{hint}; there are rules for: {', '.join(_RULES)}. "
        "Give the rows one of these names, or your own function by custom_reward_function.path and .name"
    )


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
