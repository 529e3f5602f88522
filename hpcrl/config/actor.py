"""`actor_rollout_ref.{actor,ref}.*`: the policy update and the reference model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hpcrl.config.algorithm import KLPenalty
from hpcrl.config.base import section

Positive = Annotated[int, Field(gt=0)]
LossAggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
DecayRate = Annotated[float, Field(ge=0, lt=1)]
DType = Literal["fp32", "bf16"]


@section
class OptimConfig:
    lr: Annotated[float, Field(gt=0)] = 1e-6
    """Peak learning rate (AdamW)."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """AdamW's moment decay rates."""
    lr_warmup_steps: int = -1
    """Optimiser steps of linear warm-up; negative: `lr_warmup_steps_ratio` decides."""
    lr_warmup_steps_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Warm-up as a fraction of all optimiser steps."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule after the warm-up."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Where linear and cosine end, as a fraction of `lr`."""
    num_cycles: float = 0.5
    """Cosine waves after the warm-up."""


@section
class FSDPConfig:
    model_dtype: DType = "fp32"
    """Type of the parameters and the optimiser's state."""
    dtype: DType = "bf16"
    """Type that forward and backward compute in (on a CPU: fp32 is exact and usually faster for tiny models)."""
    reshard_after_forward: bool = True
    """Free the gathered parameters after the forward pass."""


@section
class PolicyLossConfig:
    loss_mode: Literal["vanilla", "cispo", "geo_mean", "gpg", "gspo", "sapo"] = "vanilla"
    """Registered policy loss."""


@section
class ActorConfig:
    ppo_mini_batch_size: Positive = 256
    """Prompts of one optimiser step; multiplied by `rollout.n` for samples."""
    ppo_micro_batch_size_per_gpu: Positive | None = None
    """Samples of one forward and backward pass on one rank; null with `use_dynamic_bsz`."""
    use_dynamic_bsz: bool = False
    """Fill micro-batches up to `ppo_max_token_len_per_gpu` tokens instead of counting samples."""
    ppo_max_token_len_per_gpu: Positive = 16_384
    """Token budget of a micro-batch on one rank."""
    clip_ratio: Annotated[float, Field(gt=0)] = 0.2
    """PPO's clip range ε (https://arxiv.org/abs/1707.06347)."""
    clip_ratio_low: Annotated[float, Field(gt=0)] | None = None
    """Lower clip range; null: `clip_ratio`."""
    clip_ratio_high: Annotated[float, Field(gt=0)] | None = None
    """Upper clip range; null: `clip_ratio`."""
    clip_ratio_c: Annotated[float, Field(gt=1)] = 3.0
    """Bound of dual-clip PPO (https://arxiv.org/abs/1912.09729)."""
    tau_pos: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of sapo's gate at positive advantages."""
    tau_neg: Annotated[float, Field(gt=0)] = 1.05
    """Temperature of sapo's gate at negative advantages."""
    loss_agg_mode: LossAggMode = "token-mean"
    """How token losses become one number; policy losses sapo and geo_mean take their own way."""
    loss_scale_factor: Positive | None = None
    """Constant divisor of `seq-mean-token-sum-norm`; null: the response length."""
    policy_loss: PolicyLossConfig = Field(default_factory=PolicyLossConfig)
    """Which policy loss."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    use_kl_loss: bool = False
    """Add the KL against the reference model to the loss."""
    kl_loss_coef: Annotated[float, Field(ge=0)] = 0.001
    """Weight of the KL loss."""
    kl_loss_type: KLPenalty = "low_var_kl"
    """Estimator of the KL loss."""
    ppo_epochs: Positive = 1
    """Passes over each step's samples."""
    shuffle: bool = False
    """Shuffle the samples before they are cut into mini-batches."""
    data_loader_seed: int = 42
    """Seed of that shuffle."""
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient."""
    optim: OptimConfig = Field(default_factory=OptimConfig)
    """Optimiser and learning-rate schedule."""
    fsdp_config: FSDPConfig = Field(default_factory=FSDPConfig)
    """Sharding and precision."""


@section
class RefConfig:
    log_prob_micro_batch_size_per_gpu: Positive | None = None
    """Samples of one forward pass of the reference model on one rank; null: as the rollout's."""
    fsdp_config: FSDPConfig = Field(default_factory=FSDPConfig)
    """Sharding and precision of the reference model."""
