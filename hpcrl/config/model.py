"""`actor_rollout_ref.model.*`: the model that is trained, or the tiny one that is made from scratch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hpcrl.config.actor import Positive
from hpcrl.config.base import section


@section
class TinyModelConfig:
    """A random Qwen2-style model and a byte-level BPE tokenizer with one token per digit."""

    vocab_size: Annotated[int, Field(ge=320)] = 512
    """Tokens of the tokenizer: 256 bytes, the special tokens, the rest merges."""
    hidden_size: Positive = 128
    """Width of the model."""
    intermediate_size: Positive = 384
    """Width of the feed-forward layers."""
    num_hidden_layers: Positive = 2
    """Number of layers."""
    num_attention_heads: Positive = 4
    """Number of query heads."""
    num_key_value_heads: Positive = 2
    """Number of key and value heads."""
    max_position_embeddings: Positive = 1024
    """Longest sequence, in tokens."""


@section
class ModelConfig:
    path: str | None = None
    """Model folder, hub id, or `package:NAME` for weights that ship in a Python package; null: `tiny` is made."""
    tokenizer_path: str | None = None
    """Tokenizer folder or hub id; null: the model's own."""
    tiny: TinyModelConfig | None = None
    """Make a tiny random model of this shape (in the sft stage) when `path` is null."""
    backend: Literal["fsdp", "fsdp2"] = "fsdp2"
    """Training backend; `fsdp` runs as FSDP2."""
    trust_remote_code: bool = False
    """Run the code that stands in the model's folder."""
    enable_gradient_checkpointing: bool = True
    """Recompute activations in the backward pass to save memory."""
