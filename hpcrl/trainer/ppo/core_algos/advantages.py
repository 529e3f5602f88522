"""Advantage estimators by name: from token rewards to (advantages, returns), each (bs, response_length)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from torch import Tensor

from hpcrl.trainer.ppo.core_algos.masked import option
from hpcrl.trainer.ppo.core_algos.registry import F, register_in

AdvantageFn = Callable[..., tuple[Tensor, Tensor]]

ADV_ESTIMATOR_REGISTRY: dict[str, AdvantageFn] = {}


class AdvantageEstimator(StrEnum):
    """Names of the estimators that hpcrl brings."""

    GAE = "gae"
    GRPO = "grpo"
    GRPO_VECTORIZED = "grpo_vectorized"
    GRPO_PASSK = "grpo_passk"
    GPG = "gpg"
    OPO = "opo"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    REMAX = "remax"
    RLOO = "rloo"
    RLOO_VECTORIZED = "rloo_vectorized"


def register_adv_est(name_or_enum: str | AdvantageEstimator) -> Callable[[F], F]:
    """Decorator: make a function an estimator that `algorithm.adv_estimator` can name.

    It is called with keywords, of those that it takes: token_level_rewards, response_mask, index, config, gamma, lam,
    norm_adv_by_std_in_grpo, values, reward_baselines, and what else the batch holds.
    """
    return register_in(ADV_ESTIMATOR_REGISTRY, name_or_enum, "Adv estimator")


def get_adv_estimator_fn(name_or_enum: str | AdvantageEstimator) -> AdvantageFn:
    """The estimator of that name (case counts); ValueError where there is none."""
    name = name_or_enum.value if isinstance(name_or_enum, AdvantageEstimator) else name_or_enum
    if name not in ADV_ESTIMATOR_REGISTRY:
        raise ValueError(f"Unknown advantage estimator simply: {name}")
    return ADV_ESTIMATOR_REGISTRY[name]


def estimate_advantages(config: Any, **batch: Any) -> tuple[Tensor, Tensor]:
    """Call `config.adv_estimator` with what it takes of the batch and of the algorithm's config.

    Args:
        config: `algorithm` of the config (dataclass, object or mapping).
        batch: token_level_rewards, response_mask (bs, response_length), index, and whatever else there is.

    Returns: (advantages, returns). Raises ValueError where the estimator needs something that the batch lacks.
    """
    name = option(config, "adv_estimator", "grpo")
    function = get_adv_estimator_fn(name)
    options = {key: option(config, key) for key in ("gamma", "lam", "norm_adv_by_std_in_grpo")}
    available = {"config": config, **{k: v for k, v in options.items() if v is not None}, **batch}
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return function(**available)
    missing = [k for k, p in parameters.items() if p.default is p.empty and k not in available]
    if missing:
        raise ValueError(f"advantage estimator {name} needs {', '.join(missing)}, which the batch does not hold")
    return function(**{key: value for key, value in available.items() if key in parameters})
