"""Policy losses by name: from log-probs and advantages to the loss that is minimised, and its metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hpcrl.trainer.ppo.core_algos.aggregate import agg_loss, batch_info
from hpcrl.trainer.ppo.core_algos.masked import masked_mean, option
from hpcrl.trainer.ppo.core_algos.registry import F, register_in

PolicyLoss = Callable[..., tuple[Tensor, dict[str, float]]]
"""(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights) -> (loss, metrics).

Tensors (bs, response_length); `config` the actor's, as dataclass, object or mapping (`with_batch_info` adds the global
counts); `rollout_is_weights` multiplies the token losses.
"""

POLICY_LOSS_REGISTRY: dict[str, PolicyLoss] = {}


def register_policy_loss(name: str) -> Callable[[F], F]:
    """Decorator: make a function a policy loss that `policy_loss.loss_mode` can name."""
    return register_in(POLICY_LOSS_REGISTRY, name, "Policy loss")


def get_policy_loss_fn(name: str) -> PolicyLoss:
    """The policy loss of that name; ValueError names the known ones."""
    if name not in POLICY_LOSS_REGISTRY:
        known = list(POLICY_LOSS_REGISTRY)
        raise ValueError(f"Unsupported loss mode: {name}. Supported modes are: {known}")
    return POLICY_LOSS_REGISTRY[name]


def clip_range(config: Any) -> tuple[float, float]:
    """(low, high) of the clip range; each is `clip_ratio` where it is not set by itself."""
    both = option(config, "clip_ratio", 0.2)
    return option(config, "clip_ratio_low", both), option(config, "clip_ratio_high", both)


def log_ratio_of(old_log_prob: Tensor, log_prob: Tensor) -> Tensor:
    """log π/π_old, clamped so that its exponential stays finite."""
    return (log_prob - old_log_prob).clamp(-20, 20)


def aggregate_policy_loss(
    losses: Tensor, mask: Tensor, loss_agg_mode: str, config: Any, rollout_is_weights: Tensor | None
) -> Tensor:
    """Token losses (bs, response_length), weighted by `rollout_is_weights`, to a scalar by the config's counts."""
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    return agg_loss(losses, mask, loss_agg_mode, **batch_info(config))


def policy_metrics(
    mask: Tensor, log_ratio: Tensor, clipped: Tensor, clipped_lower: Tensor | None = None
) -> dict[str, float]:
    """Fractions of clipped tokens, and the k1 estimate of KL(old ‖ new)."""
    lower = 0.0 if clipped_lower is None else masked_mean(clipped_lower.float(), mask).item()
    return {
        "actor/pg_clipfrac": masked_mean(clipped.float(), mask).item(),
        "actor/ppo_kl": masked_mean(-log_ratio.detach(), mask).item(),
        "actor/pg_clipfrac_lower": lower,
    }


def _dual_clip(log_ratio: Tensor, advantages: Tensor, low: float, high: float, c: float) -> tuple[Tensor, ...]:
    """Token losses, and where the clip and the dual clip (https://arxiv.org/abs/1912.09729) bind."""
    ratio = log_ratio.exp()
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    upper = torch.maximum(free, clipped)
    bound = -advantages * c
    negative = advantages < 0
    losses = torch.where(negative, torch.minimum(bound, upper), upper)
    return losses, clipped > free, (upper > bound) & negative


def compute_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    cliprange: float | None = None,
    cliprange_low: float | None = None,
    cliprange_high: float | None = None,
    clip_ratio_c: float = 3.0,
    loss_agg_mode: str = "token-mean",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """PPO's clipped loss (https://arxiv.org/abs/1707.06347) with dual clip, as a function of plain numbers.

    Args:
        old_log_prob, log_prob: log-probs of the sampled tokens, before and now (bs, response_length).
        advantages, response_mask: (bs, response_length).
        cliprange: ε; `cliprange_low` and `cliprange_high` are ε where not given.
        clip_ratio_c: bound of the ratio at negative advantages, over 1.

    Returns: (pg_loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower), scalars. Raises ValueError for a missing clip range
        or a `clip_ratio_c` of 1 or less.
    """
    low = cliprange if cliprange_low is None else cliprange_low
    high = cliprange if cliprange_high is None else cliprange_high
    if low is None or high is None:
        raise ValueError("cliprange is required where cliprange_low or cliprange_high is not given")
    _check_dual_clip(clip_ratio_c)
    log_ratio = log_ratio_of(old_log_prob, log_prob)
    losses, clipped, clipped_lower = _dual_clip(log_ratio, advantages, low, high, clip_ratio_c)
    return (
        agg_loss(losses, response_mask, loss_agg_mode),
        masked_mean(clipped.float(), response_mask),
        masked_mean(-log_ratio, response_mask),
        masked_mean(clipped_lower.float(), response_mask),
    )


def _check_dual_clip(clip_ratio_c: float) -> None:
    if clip_ratio_c <= 1:
        raise ValueError(f"clip_ratio_c must be greater than 1, and is {clip_ratio_c}")


@register_policy_loss("vanilla")
def compute_policy_loss_vanilla(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """PPO's clipped loss with separate clip ranges and dual clip; reads clip_ratio, _low, _high and _c."""
    c = option(config, "clip_ratio_c", 3.0)
    _check_dual_clip(c)
    log_ratio = log_ratio_of(old_log_prob, log_prob)
    losses, clipped, clipped_lower = _dual_clip(log_ratio, advantages, *clip_range(config), c)
    loss = aggregate_policy_loss(losses, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, policy_metrics(response_mask, log_ratio, clipped, clipped_lower)
