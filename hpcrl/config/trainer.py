"""`trainer.*`: length, ranks, saving, validation, records; and the sft and evaluate stages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hpcrl.config.actor import FSDPConfig, OptimConfig, Positive
from hpcrl.config.base import StrList, section

TrackerName = Literal["console", "wandb"]


def _default_trackers() -> list[TrackerName]:
    return ["console"]


@section
class TrainerConfig:
    total_epochs: Positive = 30
    """Passes over the training prompts."""
    total_training_steps: Positive | None = None
    """Steps to train; null: `total_epochs` decides."""
    project_name: str = "hpcrl"
    """Project in the trackers."""
    experiment_name: str = "default"
    """Name of the experiment: its folder under `run_root`, its group in the trackers."""
    logger: list[TrackerName] = Field(default_factory=_default_trackers)
    """Trackers besides metrics.jsonl; wandb is offline unless WANDB_MODE says otherwise."""
    nnodes: Positive = 1
    """Nodes that train."""
    n_gpus_per_node: Positive = 8
    """Ranks on each node: one a GPU, or one a share of the CPUs with `device: cpu`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What ranks compute on; `auto` is decided inside the job."""
    cpu_threads_per_rank: Positive = 1
    """Threads of each rank with `device: cpu`."""
    balance_batch: bool = True
    """Give every rank about the same number of tokens."""
    save_freq: int = -1
    """Steps between checkpoints; -1: at the end only."""
    test_freq: int = -1
    """Steps between validations; -1: at the end only."""
    val_before_train: bool = True
    """Validate before the first step."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """Continue from the newest good checkpoint, from none, or from `resume_from_path`."""
    resume_from_path: str | None = None
    """A global_step_N folder, with `resume_mode: resume_path`."""
    max_actor_ckpt_to_keep: Positive | None = None
    """Newest checkpoints to keep; null: all."""


@section
class SFTConfig:
    train_files: StrList = Field(default_factory=list)
    """Parquet files of demonstrations; empty: the `sft` split of the prepare stage."""
    messages_key: str = "messages"
    """Column that holds the whole conversation."""
    max_length: Positive = 1024
    """Longest conversation, in tokens."""
    train_batch_size: Positive = 64
    """Conversations of one optimiser step, over all ranks."""
    max_token_len_per_gpu: Positive = 16_384
    """Token budget of a packed micro-batch on one rank."""
    total_training_steps: Positive | None = None
    """Optimiser steps; null: `total_epochs` decides."""
    total_epochs: Positive = 1
    """Passes over the demonstrations."""
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient."""
    optim: OptimConfig = Field(default_factory=lambda: OptimConfig(lr=1e-5))
    """Optimiser and learning-rate schedule."""
    fsdp_config: FSDPConfig = Field(default_factory=FSDPConfig)
    """Sharding and precision."""
    save_freq: int = -1
    """Steps between checkpoints; -1: at the end only."""


@section
class EvaluateConfig:
    files: StrList = Field(default_factory=list)
    """Parquet files of evaluation prompts; empty: `data.val_files`, else the `test` split of the prepare stage."""
    max_samples: int = -1
    """Use only the first so many rows; -1: all."""
    n: Positive = 1
    """Samples of each prompt at temperature 1; pass@k is reported for k = 1, 2, 4, … up to n."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the sampled evaluation."""
    greedy: bool = True
    """Also evaluate the likeliest answer."""
    before: bool = True
    """Also evaluate the model before RL, by the same procedure."""
    batch_size: Positive | None = None
    """Prompts of one evaluation batch; null: all at once."""
    success_score: float = 1.0
    """A sample is accurate when its score (or its `acc`, where the score function gives one) is at least this."""
