"""The whole config: one class a section, one place an option."""

from __future__ import annotations

from pydantic import Field

from hpcrl.config.actor import ActorConfig, RefConfig
from hpcrl.config.algorithm import AlgorithmConfig
from hpcrl.config.base import section
from hpcrl.config.data import DataConfig, PrepareConfig
from hpcrl.config.model import ModelConfig
from hpcrl.config.reward import CustomRewardFunctionConfig, RewardModelConfig
from hpcrl.config.rollout import RolloutConfig
from hpcrl.config.trainer import EvaluateConfig, SFTConfig, TrainerConfig
from hpcrl.config.workflow import ClusterConfig, WorkflowConfig


@section
class ActorRolloutRefConfig:
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The model that is trained."""
    actor: ActorConfig = Field(default_factory=ActorConfig)
    """The policy update."""
    ref: RefConfig = Field(default_factory=RefConfig)
    """The reference model."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Sampling."""


@section
class Config:
    seed: int = 0
    """Seed of everything random in the run."""
    run_root: str = "runs"
    """Folder of all runs; the environment variable RUN_ROOT also sets it."""
    workflow: WorkflowConfig = Field(default_factory=WorkflowConfig)
    """Stages and their resources."""
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    """Where and how jobs run."""
    prepare: PrepareConfig = Field(default_factory=PrepareConfig)
    """The prepare stage: sources to parquet."""
    data: DataConfig = Field(default_factory=DataConfig)
    """Training and validation prompts."""
    sft: SFTConfig = Field(default_factory=SFTConfig)
    """The sft stage: supervised warm start."""
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    """Advantages and KL control."""
    actor_rollout_ref: ActorRolloutRefConfig = Field(default_factory=ActorRolloutRefConfig)
    """Policy, rollouts and reference."""
    reward_model: RewardModelConfig = Field(default_factory=RewardModelConfig)
    """Reward manager."""
    custom_reward_function: CustomRewardFunctionConfig = Field(default_factory=CustomRewardFunctionConfig)
    """The user's own score function."""
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    """The train stage."""
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    """The evaluate stage."""
