"""The schemas of the run's tools, which the chat template shows to the model."""

from __future__ import annotations

from typing import Any

from hpcrl.config import Config, read_tool_config


def tool_schemas(config: Config) -> list[dict[str, Any]] | None:
    """Schemas in OpenAI's form, of `rollout.multi_turn.tool_config_path`; None without tools.

    Raises:
        ConfigError: the file cannot be used.
    """
    multi_turn = config.actor_rollout_ref.rollout.multi_turn
    if not multi_turn.enable or multi_turn.tool_config_path is None:
        return None
    return [tool.schema.to_openai() for tool in read_tool_config(multi_turn.tool_config_path)]
