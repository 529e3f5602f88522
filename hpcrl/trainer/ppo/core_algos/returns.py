"""Advantages from returns that run backwards over the tokens, and PPO's value loss.

Tokens with mask 0 inside a response (a tool's answer) are passed over: what was earned after them reaches what was
sampled before them. All tensors (bs, response_length).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpcrl.trainer.ppo.core_algos.advantages import AdvantageEstimator, register_adv_est
from hpcrl.trainer.ppo.core_algos.aggregate import agg_loss
from hpcrl.trainer.ppo.core_algos.masked import masked_mean, masked_whiten, option


@register_adv_est(AdvantageEstimator.GAE)
@torch.no_grad()
def compute_gae_advantage_return(
    token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (https://arxiv.org/abs/1506.02438); advantages are whitened, returns are not."""
    next_value = torch.zeros_like(values[:, 0])
    next_advantage = torch.zeros_like(values[:, 0])
    advantages = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        own = response_mask[:, t] > 0
        delta = token_level_rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(own, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(own, values[:, t], next_value)
        advantages[:, t] = next_advantage
    return masked_whiten(advantages, response_mask), advantages + values


@register_adv_est(AdvantageEstimator.REINFORCE_PLUS_PLUS)
@torch.no_grad()
def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, config: Any = None
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ (https://arxiv.org/abs/2501.03262): discounted returns, whitened over all tokens; reads gamma."""
    gamma = option(config, "gamma", 1.0)
    running = torch.zeros_like(token_level_rewards[:, 0])
    returns = torch.zeros_like(token_level_rewards)
    for t in reversed(range(token_level_rewards.shape[1])):
        own = response_mask[:, t] > 0
        running = torch.where(own, token_level_rewards[:, t] + gamma * running, running)
        returns[:, t] = torch.where(own, running, 0.0)
    return masked_whiten(returns, response_mask) * response_mask, returns


@register_adv_est(AdvantageEstimator.REMAX)
@torch.no_grad()
def compute_remax_outcome_advantage(
    token_level_rewards: Tensor, reward_baselines: Tensor, response_mask: Tensor, config: Any = None
) -> tuple[Tensor, Tensor]:
    """ReMax (https://arxiv.org/abs/2310.10505): the return less the greedy answer's score, reward_baselines (bs,)."""
    earned = token_level_rewards * response_mask
    returns = earned.flip(-1).cumsum(-1).flip(-1)
    return returns - reward_baselines.unsqueeze(-1) * response_mask, returns


def compute_value_loss(
    vpreds: Tensor,
    returns: Tensor,
    values: Tensor,
    response_mask: Tensor,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
    dp_size: int = 1,
    batch_num_tokens: int | None = None,
    global_batch_size: int | None = None,
    loss_scale_factor: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Clipped squared error of the critic; `values` are the predictions before the update, `vpreds` those of now.

    Returns: (loss, fraction of tokens where the clip binds). The counts are those of `agg_loss`.
    """
    clipped = torch.clamp(vpreds, values - cliprange_value, values + cliprange_value)
    free_loss, clipped_loss = (vpreds - returns).square(), (clipped - returns).square()
    loss = agg_loss(
        torch.maximum(free_loss, clipped_loss),
        response_mask,
        loss_agg_mode,
        dp_size=dp_size,
        batch_num_tokens=batch_num_tokens,
        global_batch_size=global_batch_size,
        loss_scale_factor=loss_scale_factor,
    )
    return 0.5 * loss, masked_mean((clipped_loss > free_loss).float(), response_mask)
