"""The algorithms as pure functions on tensors: aggregation, policy losses, advantages, KL."""

from __future__ import annotations

from hpcrl.trainer.ppo.core_algos.advantages import (
    ADV_ESTIMATOR_REGISTRY,
    AdvantageEstimator,
    compute_grpo_outcome_advantage,
    estimate_advantages,
    get_adv_estimator_fn,
    register_adv_est,
)
from hpcrl.trainer.ppo.core_algos.aggregate import agg_loss, compute_entropy_loss, with_batch_info
from hpcrl.trainer.ppo.core_algos.kl import (
    AdaptiveKLController,
    FixedKLController,
    apply_kl_in_reward,
    compute_rewards,
    get_kl_controller,
    kl_penalty,
)
from hpcrl.trainer.ppo.core_algos.policy_losses import (
    POLICY_LOSS_REGISTRY,
    compute_policy_loss,
    compute_policy_loss_vanilla,
    get_policy_loss_fn,
    register_policy_loss,
)

__all__ = [
    "ADV_ESTIMATOR_REGISTRY",
    "POLICY_LOSS_REGISTRY",
    "AdaptiveKLController",
    "AdvantageEstimator",
    "FixedKLController",
    "agg_loss",
    "apply_kl_in_reward",
    "compute_entropy_loss",
    "compute_grpo_outcome_advantage",
    "compute_policy_loss",
    "compute_policy_loss_vanilla",
    "compute_rewards",
    "estimate_advantages",
    "get_adv_estimator_fn",
    "get_kl_controller",
    "get_policy_loss_fn",
    "kl_penalty",
    "register_adv_est",
    "register_policy_loss",
    "with_batch_info",
]
