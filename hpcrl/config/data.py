"""`data.*`: the parquet files of training and validation, and how prompts are batched."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hpcrl.config.base import StrList, section


@section
class DataConfig:
    train_files: StrList = Field(default_factory=list)
    """Parquet files of training prompts; empty: the `train` split of the prepare stage."""
    val_files: StrList = Field(default_factory=list)
    """Parquet files of validation prompts; empty: the `test` split of the prepare stage."""
    prompt_key: str = "prompt"
    """Column that holds the chat messages."""
    reward_fn_key: str = "data_source"
    """Column that chooses the score function."""
    max_prompt_length: Annotated[int, Field(gt=0)] = 512
    """Longest prompt, in tokens; shorter ones are padded on the left."""
    max_response_length: Annotated[int, Field(gt=0)] = 512
    """Longest response, in tokens, tool answers included."""
    train_batch_size: Annotated[int, Field(gt=0)] = 1024
    """Prompts in one training step; each is sampled `rollout.n` times."""
    val_batch_size: Annotated[int, Field(gt=0)] | None = None
    """Prompts in one validation batch; null: all at once."""
    train_max_samples: int = -1
    """Use only the first so many training rows; -1: all."""
    val_max_samples: int = -1
    """Use only the first so many validation rows; -1: all."""
    shuffle: bool = True
    """Shuffle the training rows anew in each epoch, by `data.seed` and the epoch."""
    seed: int | None = None
    """Seed of the shuffle; null: the run's `seed`."""
    filter_overlong_prompts: bool = False
    """Drop prompts over `max_prompt_length`, counted in the dataset card."""
    truncation: Literal["error", "left", "right", "middle"] = "error"
    """What to do with a prompt over `max_prompt_length` that was not filtered: refuse it, or cut it on a side."""
    apply_chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Extra arguments of the tokenizer's chat template."""


@section
class SourceConfig:
    source: str
    """Registered source: arithmetic, reasoning_gym, file, huggingface, gsm8k, math."""
    rows: Annotated[int, Field(gt=0)] | None = None
    """How many rows to take or to make; null: all (a generator needs a number)."""
    path: str | None = None
    """File, folder or hub id that the source reads."""
    split: str | None = None
    """Split of the source to read, for sources that have their own."""
    seed: int | None = None
    """Seed of a generator; null: the run's `seed` joined with the split's name."""
    data_source: str | None = None
    """Value of the `data_source` column; null: the source's own name."""
    columns: dict[str, str] = Field(default_factory=dict)
    """For `file` and `huggingface`: our field (prompt, ground_truth, ability, …) to their column."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further options of the source, checked by it."""


@section
class PrepareConfig:
    splits: dict[str, list[SourceConfig]] = Field(default_factory=dict)
    """Split name (train, test, sft, …) to the sources that it is made of, in order."""
    rows_per_shard: Annotated[int, Field(gt=0)] = 50_000
    """Rows of one parquet shard; a shard is also the unit of parallel preparation."""
    num_workers: Annotated[int, Field(gt=0)] = 1
    """Shards prepared at the same time, through submitit; 1: in the stage's own process."""
    max_bad_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Fail when more than this fraction of a split's rows is invalid."""
