"""Advantages of a sample against the other samples of its prompt.

Each estimator takes token_level_rewards and response_mask, (bs, response_length), and index, (bs,), equal for samples
of one prompt. It gives every token of a sample the same advantage, and returns it twice, as (advantages, returns).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpcrl.trainer.ppo.core_algos.advantages import AdvantageEstimator, register_adv_est
from hpcrl.trainer.ppo.core_algos.groups import Groups, Index
from hpcrl.trainer.ppo.core_algos.masked import masked_whiten, option


def _spread(per_sample: Tensor, response_mask: Tensor) -> tuple[Tensor, Tensor]:
    """One advantage a sample, on each of its own tokens."""
    advantages = per_sample.unsqueeze(-1) * response_mask
    return advantages, advantages


def _centred(scores: Tensor, groups: Groups) -> Tensor:
    """Scores less their group's mean; a sample that is alone keeps its score."""
    return torch.where(groups.single, scores, scores - groups.mean(scores))


@register_adv_est(AdvantageEstimator.GRPO)
@register_adv_est(AdvantageEstimator.GRPO_VECTORIZED)
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
    """
    scores = token_level_rewards.sum(-1)
    groups = Groups(index, like=scores)
    centred = _centred(scores, groups)
    if norm_adv_by_std_in_grpo:
        centred = centred / (torch.where(groups.single, 1.0, groups.std(scores)) + epsilon)
    return _spread(centred, response_mask)


@register_adv_est(AdvantageEstimator.GRPO_PASSK)
@torch.no_grad()
def compute_grpo_passk_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool | None = None,
    config: Any = None,
) -> tuple[Tensor, Tensor]:
    """Pass@k training (https://arxiv.org/abs/2503.19595): a group's best sample gets its lead over the second best.

    All others get 0. ValueError for a group of one.
    """
    scores = token_level_rewards.sum(-1)
    groups = Groups(index, like=scores)
    if bool(groups.single.any()):
        raise ValueError("grpo_passk needs at least 2 samples of each prompt (rollout.n)")
    advantages = torch.zeros_like(scores)
    for group in range(groups.count):
        members = (groups.of_sample == group).nonzero().squeeze(-1)
        best, second = scores[members].topk(2).values
        advantages[members[scores[members].argmax()]] = best - second
    normalise = option(config, "norm_adv_by_std_in_grpo", True)
    if normalise if norm_adv_by_std_in_grpo is None else norm_adv_by_std_in_grpo:
        advantages = advantages / (groups.std(scores) + epsilon)
    return _spread(advantages, response_mask)


@register_adv_est(AdvantageEstimator.RLOO)
@torch.no_grad()
def compute_rloo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index, config: Any = None
) -> tuple[Tensor, Tensor]:
    """RLOO (https://arxiv.org/abs/2402.14740): the score less the mean of the group's others; alone, the score."""
    scores = token_level_rewards.sum(-1)
    groups = Groups(index, like=scores)
    return _spread(_leave_one_out(scores, groups, alone=scores), response_mask)


@register_adv_est(AdvantageEstimator.RLOO_VECTORIZED)
@torch.no_grad()
def compute_rloo_vectorized_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index, config: Any = None
) -> tuple[Tensor, Tensor]:
    """RLOO in which a sample that is alone in its group gets 0."""
    scores = token_level_rewards.sum(-1)
    groups = Groups(index, like=scores)
    return _spread(_leave_one_out(scores, groups, alone=torch.zeros_like(scores)), response_mask)


def _leave_one_out(scores: Tensor, groups: Groups, alone: Tensor) -> Tensor:
    others = (groups.sizes - 1).clamp(min=1)
    return torch.where(groups.single, alone, (scores - groups.mean(scores)) * groups.sizes / others)


@register_adv_est(AdvantageEstimator.OPO)
@torch.no_grad()
def compute_opo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index, config: Any = None
) -> tuple[Tensor, Tensor]:
    """OPO (https://arxiv.org/abs/2505.23585): the baseline is the group's mean score, weighted by response length."""
    scores, lengths = token_level_rewards.sum(-1), response_mask.sum(-1)
    groups = Groups(index, like=scores)
    baseline = groups.total(scores * lengths) / groups.total(lengths).clamp(min=1)
    return _spread(torch.where(groups.single, scores, scores - baseline), response_mask)


@register_adv_est(AdvantageEstimator.GPG)
@torch.no_grad()
def compute_gpg_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index, f_norm: float = 1.0, config: Any = None
) -> tuple[Tensor, Tensor]:
    """GPG (https://arxiv.org/abs/2504.02546): centred scores, scaled up by the share of samples with a score of 0."""
    scores = token_level_rewards.sum(-1)
    alpha = scores.shape[0] / scores.count_nonzero().clamp(min=1)
    centred = _centred(scores, Groups(index, like=scores))
    return _spread(centred * alpha / f_norm, response_mask)


@register_adv_est(AdvantageEstimator.REINFORCE_PLUS_PLUS_BASELINE)
@torch.no_grad()
def compute_reinforce_plus_plus_baseline_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index, config: Any = None
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ with baseline (https://arxiv.org/abs/2501.03262): centred scores, whitened over all tokens."""
    scores = token_level_rewards.sum(-1)
    centred = _centred(scores, Groups(index, like=scores)).unsqueeze(-1).expand_as(response_mask)
    advantages = masked_whiten(centred, response_mask) * response_mask
    return advantages, advantages
