"""The algorithms as pure functions on tensors: aggregation, policy losses, advantages, KL."""

from __future__ import annotations

from hpcrl.trainer.ppo.core_algos.advantages import (
    ADV_ESTIMATOR_REGISTRY,
    AdvantageEstimator,
    estimate_advantages,
    get_adv_estimator_fn,
    register_adv_est,
)
from hpcrl.trainer.ppo.core_algos.aggregate import agg_loss, compute_entropy_loss, with_batch_info
from hpcrl.trainer.ppo.core_algos.group_baselines import (
    compute_gpg_outcome_advantage,
    compute_grpo_outcome_advantage,
    compute_grpo_passk_outcome_advantage,
    compute_opo_outcome_advantage,
    compute_reinforce_plus_plus_baseline_outcome_advantage,
    compute_rloo_outcome_advantage,
    compute_rloo_vectorized_outcome_advantage,
)
from hpcrl.trainer.ppo.core_algos.kl import (
    AdaptiveKLController,
    FixedKLController,
    apply_kl_in_reward,
    compute_rewards,
    get_kl_controller,
    kl_penalty,
)
from hpcrl.trainer.ppo.core_algos.policy_loss_variants import (
    compute_policy_loss_cispo,
    compute_policy_loss_geo_mean,
    compute_policy_loss_gpg,
    compute_policy_loss_gspo,
    compute_policy_loss_sapo,
)
from hpcrl.trainer.ppo.core_algos.policy_losses import (
    POLICY_LOSS_REGISTRY,
    compute_policy_loss,
    compute_policy_loss_vanilla,
    get_policy_loss_fn,
    register_policy_loss,
)
from hpcrl.trainer.ppo.core_algos.returns import (
    compute_gae_advantage_return,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_remax_outcome_advantage,
    compute_value_loss,
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
    "compute_gae_advantage_return",
    "compute_gpg_outcome_advantage",
    "compute_grpo_outcome_advantage",
    "compute_grpo_passk_outcome_advantage",
    "compute_opo_outcome_advantage",
    "compute_policy_loss",
    "compute_policy_loss_cispo",
    "compute_policy_loss_geo_mean",
    "compute_policy_loss_gpg",
    "compute_policy_loss_gspo",
    "compute_policy_loss_sapo",
    "compute_policy_loss_vanilla",
    "compute_reinforce_plus_plus_baseline_outcome_advantage",
    "compute_reinforce_plus_plus_outcome_advantage",
    "compute_remax_outcome_advantage",
    "compute_rewards",
    "compute_rloo_outcome_advantage",
    "compute_rloo_vectorized_outcome_advantage",
    "compute_value_loss",
    "estimate_advantages",
    "get_adv_estimator_fn",
    "get_kl_controller",
    "get_policy_loss_fn",
    "kl_penalty",
    "register_adv_est",
    "register_policy_loss",
    "with_batch_info",
]
