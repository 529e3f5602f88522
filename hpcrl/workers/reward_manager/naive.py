"""The reward is the score."""

from __future__ import annotations

from typing import Any

from hpcrl.workers.reward_manager.base import AbstractRewardManager, Response
from hpcrl.workers.reward_manager.registry import register


@register("naive")
class NaiveRewardManager(AbstractRewardManager):
    """The reward manager: what the score function gives stands at the response's last token."""

    def shaped(self, record: dict[str, Any], response: Response) -> float:
        return record["score"]
