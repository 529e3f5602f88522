"""`algorithm.*`: advantages and KL control."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from hpcrl.config.base import section

AdvEstimator = Literal[
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "gpg",
    "opo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "rloo_vectorized",
]
ADV_ESTIMATORS: tuple[str, ...] = get_args(AdvEstimator)
"""Advantage estimators that a run can take; a test holds this against the registry."""

KLPenalty = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "kl+", "abs+", "k3+", "low_var_kl+"]


@section
class KLControlConfig:
    type: Literal["fixed", "adaptive"] = "fixed"
    """A constant coefficient, or one that follows `target_kl`."""
    kl_coef: Annotated[float, Field(ge=0)] = 0.001
    """Coefficient of the KL penalty in the reward (its first value, where adaptive)."""
    horizon: Annotated[int, Field(gt=0)] = 10_000
    """Samples over which an adaptive coefficient moves."""
    target_kl: Annotated[float, Field(gt=0)] = 0.1
    """KL that an adaptive coefficient aims at."""


@section
class AlgorithmConfig:
    adv_estimator: AdvEstimator = "grpo"
    """Advantage estimator."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount factor; of these estimators, reinforce_plus_plus reads it."""
    lam: Annotated[float, Field(ge=0, le=1)] = 1.0
    """λ of generalised advantage estimation, which no estimator of a run reads yet."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide a group's advantages by their standard deviation (false: Dr. GRPO)."""
    use_kl_in_reward: bool = False
    """Subtract the KL penalty against the reference from each token's reward."""
    kl_penalty: KLPenalty = "kl"
    """Estimator of the KL penalty in the reward."""
    kl_ctrl: KLControlConfig = Field(default_factory=KLControlConfig)
    """Coefficient of the KL penalty in the reward."""
