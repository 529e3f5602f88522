"""Which rule scores which data_source, as data: a submission looks here, and imports no rule."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase

REWARD_RULES: dict[str, str] = {
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


def find_rule(data_source: str) -> str | None:
    """The module that scores a data_source; None: there is none."""
    return next((module for pattern, module in REWARD_RULES.items() if fnmatchcase(data_source, pattern)), None)


def no_rule(data_source: str) -> str:
    """What to say where there is no rule."""
    near = difflib.get_close_matches(data_source, REWARD_RULES, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return (
        f"no reward rule for data_source {data_source!r}{hint}; there are rules for: {', '.join(REWARD_RULES)}. "
        "Give the rows one of these names, or your own function by custom_reward_function.path and .name"
    )
