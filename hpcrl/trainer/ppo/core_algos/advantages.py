"""Advantage estimators by name: from token rewards to (advantages, returns), each (bs, response_length)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcrl.trainer.ppo.core_algos.masked import option
from hpcrl.trainer.ppo.core_algos.registry import F, register_in

AdvantageFn = Callable[..., tuple[Tensor, Tensor]]
Index = Sequence[Hashable] | np.ndarray | Tensor
"""The prompt that each sample answers: any hashable value, strings among them; equal values form a group."""

ADV_ESTIMATOR_REGISTRY: dict[str, AdvantageFn] = {}


class AdvantageEstimator(str, Enum):
    """Names of the estimators that hpcrl brings."""

    GRPO = "grpo"


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


class Groups:
    """Samples grouped by prompt: the one place where group means and the like are computed."""

    def __init__(self, index: Index, like: Tensor) -> None:
        """`index`: (bs,); `like`: a tensor on the device, and of the dtype, of the scores."""
        values = index.tolist() if isinstance(index, Tensor | np.ndarray) else list(index)
        numbers: dict[Hashable, int] = {}
        members = [numbers.setdefault(value, len(numbers)) for value in values]
        self.of_sample = torch.tensor(members, device=like.device, dtype=torch.long)
        self.count = len(numbers)
        self.sizes = self.total(torch.ones(len(members), device=like.device, dtype=like.dtype))

    def total(self, values: Tensor) -> Tensor:
        """Sum of each sample's group, (bs,) to (bs,)."""
        sums = torch.zeros(self.count, device=values.device, dtype=values.dtype)
        return sums.index_add(0, self.of_sample, values)[self.of_sample]

    def mean(self, values: Tensor) -> Tensor:
        """Mean of each sample's group, (bs,) to (bs,)."""
        return self.total(values) / self.sizes

    def std(self, values: Tensor) -> Tensor:
        """Unbiased standard deviation of each sample's group, (bs,) to (bs,); 0 for a group of one."""
        squares = self.total((values - self.mean(values)).square())
        return (squares / (self.sizes - 1).clamp(min=1)).sqrt()

    @property
    def single(self) -> Tensor:
        """Which samples are alone in their group, (bs,)."""
        return self.sizes == 1


def _spread(per_sample: Tensor, response_mask: Tensor) -> tuple[Tensor, Tensor]:
    """One advantage a sample, on each of its own tokens; returns are the same."""
    advantages = per_sample.unsqueeze(-1) * response_mask
    return advantages, advantages


@register_adv_est(AdvantageEstimator.GRPO)
@torch.no_grad()
def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
) -> tuple[Tensor, Tensor]:
    """GRPO (https://arxiv.org/abs/2402.03300): a sample's score against its group's mean and standard deviation.

    Without the division by the standard deviation it is Dr. GRPO (https://arxiv.org/abs/2503.20783). A sample that is
    alone in its group keeps its score.

    Args:
        token_level_rewards, response_mask: (bs, response_length).
        index: (bs,), equal for samples of one prompt.
    """
    scores = token_level_rewards.sum(-1)
    groups = Groups(index, like=scores)
    mean = torch.where(groups.single, 0.0, groups.mean(scores))
    centred = scores - mean
    if norm_adv_by_std_in_grpo:
        centred = centred / (torch.where(groups.single, 1.0, groups.std(scores)) + epsilon)
    return _spread(centred, response_mask)
