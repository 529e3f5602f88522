"""The schemas of the run's tools, which the chat template shows to the model."""

from __future__ import annotations

from typing import Any

import yaml

from hpcrl.config import Config
from hpcrl.config.seam import UserError


def tool_schemas(config: Config) -> list[dict[str, Any]] | None:
    """Schemas in OpenAI's form, of `rollout.multi_turn.tool_config_path`; None without tools."""
    multi_turn = config.actor_rollout_ref.rollout.multi_turn
    if not multi_turn.enable or multi_turn.tool_config_path is None:
        return None
    try:
        with open(multi_turn.tool_config_path, encoding="utf-8") as file:
            declared = yaml.safe_load(file)
        return [tool["tool_schema"] for tool in declared["tools"]]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{multi_turn.tool_config_path}: not a readable tool config: {error!r}") from error
