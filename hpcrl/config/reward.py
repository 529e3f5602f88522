"""`reward_model.*` and `custom_reward_function.*`: how responses are scored."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hpcrl.config.base import section


@section
class RewardModelConfig:
    reward_manager: Literal["naive", "dapo"] = "naive"
    """Registered reward manager."""
    reward_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Extra arguments of the reward manager."""


@section
class CustomRewardFunctionConfig:
    path: str | None = None
    """Python file with the score function; null: the rule of the row's data_source."""
    name: str = "compute_score"
    """Function in that file: (data_source, solution_str, ground_truth, extra_info, **kwargs) -> float or dict."""
    reward_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments handed to the function."""
