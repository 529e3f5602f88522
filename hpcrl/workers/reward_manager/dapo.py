"""DAPO's reward: the score, less a penalty for responses that come near the longest length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcrl.config.seam import UserError
from hpcrl.rewards.registry import ScoreFunction
from hpcrl.workers.reward_manager.base import AbstractRewardManager, Response
from hpcrl.workers.reward_manager.registry import register

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class OverlongBuffer:
    """`overlong_buffer_cfg`: soft overlong punishment (https://arxiv.org/abs/2503.14476, section 3.4)."""

    enable: bool = False
    len: int = 0
    """Tokens before the longest length in which the penalty grows."""
    penalty_factor: float = 1.0
    """Penalty at the longest length."""
    log: bool = False
    """Record the penalty of each response."""


@register("dapo")
class DAPORewardManager(AbstractRewardManager):
    """The reward manager of DAPO."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        num_examine: int,
        compute_score: ScoreFunction | None = None,
        reward_fn_key: str = "data_source",
        max_resp_len: int | None = None,
        overlong_buffer_cfg: Mapping[str, Any] | OverlongBuffer | None = None,
        compute_score_timeout: float | None = None,
        poll: Callable[[], None] | None = None,
    ) -> None:
        """Args:
        max_resp_len: longest response, in tokens.
        overlong_buffer_cfg: {enable, len, penalty_factor, log}.
        """
        super().__init__(tokenizer, num_examine, compute_score, reward_fn_key, compute_score_timeout, poll)
        if isinstance(overlong_buffer_cfg, Mapping):
            overlong_buffer_cfg = _buffer(overlong_buffer_cfg)
        if overlong_buffer_cfg is not None:
            if max_resp_len is None:
                raise AssertionError(f"max_resp_len must be provided if {overlong_buffer_cfg=}, but got None")
            if max_resp_len < overlong_buffer_cfg.len:
                raise AssertionError("max_resp_len must be larger than overlong_buffer.len")
            if overlong_buffer_cfg.enable and overlong_buffer_cfg.len <= 0:
                raise AssertionError("overlong_buffer.len must be positive when the buffer is enabled")
        self.max_resp_len = max_resp_len or 0
        self.overlong_buffer = overlong_buffer_cfg or OverlongBuffer()

    def shaped(self, record: dict[str, Any], response: Response) -> float:
        """The score, less up to `penalty_factor` (and more beyond the longest length)."""
        record.setdefault("acc", record["score"])
        buffer = self.overlong_buffer
        if not buffer.enable:
            return record["score"]
        beyond = response.length - (self.max_resp_len - buffer.len)
        penalty = min(-beyond / buffer.len * buffer.penalty_factor, 0.0)
        if buffer.log:
            record["overlong_reward"] = penalty
            record["overlong"] = penalty < 0
        return record["score"] + penalty


def _buffer(values: Mapping[str, Any]) -> OverlongBuffer:
    unknown = sorted(values.keys() - OverlongBuffer.__dataclass_fields__.keys())
    if unknown:
        known = list(OverlongBuffer.__dataclass_fields__)
        raise UserError(f"overlong_buffer_cfg: unknown keys {unknown}, known are {known}")
    return OverlongBuffer(**values)
