"""`actor_rollout_ref.rollout.*`: sampling, its engine, the agent loop and its tools."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hpcrl.config.actor import DType, Positive
from hpcrl.config.base import section

Temperature = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(gt=0, le=1)]


@section
class MultiTurnConfig:
    enable: bool = False
    """Let the model call tools over several turns."""
    tool_config_path: str | None = None
    """YAML that declares the tools (`tools: [{class_name, config, tool_schema}]`)."""
    max_assistant_turns: Positive | None = None
    """Turns that the model may take; null: as many as fit."""
    max_user_turns: Positive | None = None
    """Turns of tool answers; null: as many as fit."""
    max_parallel_calls: Positive = 1
    """Tool calls of one turn that are carried out; further ones are answered with an error."""
    max_tool_response_length: Positive = 256
    """Longest tool answer, in characters."""
    tool_response_truncate_side: Literal["left", "middle", "right"] = "middle"
    """What is kept of a longer answer: its beginning (left), its end (right), or half of each (middle)."""
    format: Literal["hermes"] = "hermes"
    """How the model writes tool calls."""


AGENT_LOOPS = ("single_turn_agent", "tool_agent")
"""Agent loops by name; a test holds this against the registry."""


@section
class AgentConfig:
    default_agent_loop: str | None = None
    """Of rows without `agent_name` (name or dotted path); null: by `multi_turn` tool_agent or single_turn_agent."""


@section
class ValKwargsConfig:
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature of validation."""
    top_p: Probability = 1.0
    """Nucleus of validation."""
    top_k: int = -1
    """Top-k of validation; -1: all."""
    do_sample: bool = False
    """Sample (true) or take the likeliest token (false)."""
    n: Positive = 1
    """Samples of each validation prompt."""


@section
class RolloutConfig:
    name: Literal["hf"] = "hf"
    """Engine that samples."""
    n: Positive = 1
    """Samples of each prompt."""
    temperature: Temperature = 1.0
    """Sampling temperature; log-probs are of logits divided by it."""
    top_p: Probability = 1.0
    """Nucleus sampling."""
    top_k: int = -1
    """Sample among the k likeliest tokens; -1: all."""
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Leave out tokens less likely than this fraction of the likeliest."""
    do_sample: bool = True
    """Sample (true) or take the likeliest token (false)."""
    dtype: DType = "fp32"
    """Type that the engine computes in."""
    max_num_seqs: Positive = 256
    """Sequences that one replica computes together."""
    log_prob_micro_batch_size_per_gpu: Positive | None = None
    """Samples of one forward pass when log-probs are recomputed on one rank; null: the actor's micro-batch."""
    calculate_log_probs: bool = True
    """Keep the engine's own log-probs, and report how far the trainer's are from them."""
    val_kwargs: ValKwargsConfig = Field(default_factory=ValKwargsConfig)
    """Sampling of validation."""
    multi_turn: MultiTurnConfig = Field(default_factory=MultiTurnConfig)
    """Tools and turns."""
    agent: AgentConfig = Field(default_factory=AgentConfig)
    """Which agent loop."""
