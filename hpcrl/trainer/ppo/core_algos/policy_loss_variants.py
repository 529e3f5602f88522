"""Policy losses besides PPO's: each with the signature and the metrics of `PolicyLoss`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpcrl.trainer.ppo.core_algos.aggregate import agg_loss, batch_info
from hpcrl.trainer.ppo.core_algos.masked import masked_mean, masked_sum, option
from hpcrl.trainer.ppo.core_algos.policy_losses import (
    aggregate_policy_loss,
    clip_range,
    log_ratio_of,
    policy_metrics,
    register_policy_loss,
)

Result = tuple[Tensor, dict[str, float]]


@register_policy_loss("gspo")
def compute_policy_loss_gspo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Result:
    """GSPO (https://arxiv.org/abs/2507.18071): one clipped ratio a sequence; meant for seq-mean-token-mean."""
    low, high = clip_range(config)
    log_ratio = log_ratio_of(old_log_prob, log_prob)
    lengths = response_mask.sum(-1).clamp(min=1)
    of_sequence = (masked_sum(log_ratio, response_mask, dim=-1) / lengths).detach().unsqueeze(-1)
    ratio = (log_prob - log_prob.detach() + of_sequence).clamp(max=10).exp()
    free, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high)
    loss = aggregate_policy_loss(torch.maximum(free, clipped), response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, policy_metrics(response_mask, log_ratio, clipped > free)


@register_policy_loss("sapo")
def compute_policy_loss_sapo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Result:
    """SAPO (https://arxiv.org/abs/2511.20347): a soft gate, of temperature tau_pos or tau_neg, in place of the clip.

    Always aggregated seq-mean-token-mean.
    """
    log_ratio = log_ratio_of(old_log_prob, log_prob)
    tau = torch.where(advantages > 0, option(config, "tau_pos", 1.0), option(config, "tau_neg", 1.05))
    gate = torch.sigmoid(tau * (log_ratio.exp() - 1)) * 4 / tau
    loss = aggregate_policy_loss(-gate * advantages, response_mask, "seq-mean-token-mean", config, rollout_is_weights)
    return loss, policy_metrics(response_mask, log_ratio, torch.zeros_like(log_ratio))


@register_policy_loss("gpg")
def compute_policy_loss_gpg(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Result:
    """The plain policy gradient of GPG (https://arxiv.org/abs/2504.02546), without a ratio."""
    return aggregate_policy_loss(-log_prob * advantages, response_mask, loss_agg_mode, config, rollout_is_weights), {}


@register_policy_loss("cispo")
def compute_policy_loss_cispo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Result:
    """CISPO (https://arxiv.org/abs/2506.13585): the policy gradient weighted by the clipped ratio, held constant."""
    low, high = clip_range(config)
    log_ratio = log_ratio_of(old_log_prob, log_prob)
    ratio = log_ratio.exp()
    weight = ratio.clamp(1 - low, 1 + high)
    losses = -weight.detach() * advantages * log_prob
    loss = aggregate_policy_loss(losses, response_mask, loss_agg_mode, config, rollout_is_weights)
    return loss, policy_metrics(response_mask, log_ratio, weight != ratio)


@register_policy_loss("geo_mean")
def compute_policy_loss_geo_mean(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Result:
    """GMPO (https://arxiv.org/abs/2507.20673): the geometric mean of a sequence's ratios, clipped in log space.

    The mean over sequences is taken whatever `loss_agg_mode` says.
    """
    low, high = clip_range(config)
    log_ratio = log_ratio_of(old_log_prob, log_prob)
    clamped = log_ratio.clamp(-low, high)
    side = torch.sign(advantages)
    kept = side * torch.minimum(side * log_ratio, side * clamped)
    lengths = response_mask.sum(-1)
    mean_log_ratio = masked_sum(kept, response_mask, dim=-1) / (lengths + 1e-8)
    mean_advantage = masked_mean(advantages, response_mask, dim=-1)
    losses = -mean_advantage * mean_log_ratio.exp()
    if rollout_is_weights is not None:
        weights = torch.where(response_mask.bool(), rollout_is_weights, 1.0)
        losses = losses * (weights.log().sum(-1) / (lengths + 1e-8)).exp()
    clipped = (log_ratio != clamped).float()
    metrics = policy_metrics(response_mask, log_ratio, clipped * (advantages > 0), clipped * (advantages < 0))
    loss = agg_loss(
        losses.unsqueeze(-1), (lengths > 0).float().unsqueeze(-1), "seq-mean-token-sum", **batch_info(config)
    )
    return loss, metrics
