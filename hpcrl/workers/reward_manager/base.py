"""What reward managers share: rows to text, score functions that may fail or hang, scores to tensors."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hpcrl.config.seam import UserError
from hpcrl.protocol import DataProto, DataProtoItem
from hpcrl.rewards.registry import ScoreFunction, default_compute_score
from hpcrl.workers.reward_manager.time_limit import call_within

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

TRAJECTORY_FACTS = {"__num_turns__": "num_turns", "tool_calls": "tool_calls", "tool_rewards": "tool_rewards"}
"""Columns of the agent loop, and the names under which score functions find them in extra_info."""


@dataclass(frozen=True)
class Response:
    """One row as a score function sees it."""

    data_source: str
    prompt: str
    text: str
    length: int
    """Tokens of the response, tool answers included."""
    ground_truth: Any
    extra_info: dict[str, Any]


class AbstractRewardManager(ABC):
    """Scores the responses of a batch one by one; a score stands at the response's last token."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        num_examine: int,
        compute_score: ScoreFunction | None = None,
        reward_fn_key: str = "data_source",
        compute_score_timeout: float | None = None,
        poll: Callable[[], None] | None = None,
    ) -> None:
        """Args:
        tokenizer: turns tokens into the text that is scored, special tokens left out.
        num_examine: so many responses of each data_source are logged in each call.
        compute_score: (data_source=, solution_str=, ground_truth=, extra_info=) -> float or dict with `score`; None:
            the rule of the row's data_source.
        reward_fn_key: column that holds the data_source.
        compute_score_timeout: seconds that one call may take; beyond, the score is 0. None: no limit.
        poll: called before each row is scored; what it raises (a stop that was asked for) ends the batch.
        """
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.compute_score = compute_score or default_compute_score
        self.reward_fn_key = reward_fn_key
        self.compute_score_timeout = compute_score_timeout
        self.poll = poll

    def __call__(self, data: DataProto, return_dict: bool = False) -> torch.Tensor | dict[str, Any]:
        """Score a batch.

        Args:
            data: batch: prompts (bs, P), responses (bs, R), attention_mask (bs, P + R); non_tensor_batch: the column
                `reward_fn_key`, reward_model {ground_truth}, extra_info. With `rm_scores` (bs, R) in the batch,
                those are the answer.
            return_dict: also give what the score functions recorded.

        Returns:
            (bs, R) float32; or {"reward_tensor": that, "reward_extra_info": name to a list of bs values}, `score`
            always among the names. A row whose score function failed, took too long or gave no finite number has
            score 0 and `score_error` says why (it is among the names only where that happened).

        Raises:
            UserError: the function failed on every row of the batch, or gave something that is no score.
        """
        if "rm_scores" in data.batch:
            scores = data.batch["rm_scores"]
            return {"reward_tensor": scores, "reward_extra_info": {}} if return_dict else scores
        tensor = torch.zeros(data.batch["responses"].shape, dtype=torch.float32)
        records: list[dict[str, Any]] = []
        seen: Counter[str] = Counter()
        for i in range(len(data)):
            if self.poll is not None:
                self.poll()
            response = self.read(data[i])
            record = self._scored(response)
            reward = self.shaped(record, response)
            if response.length > 0:  # an empty response has no token to hold a score
                tensor[i, response.length - 1] = reward
            records.append(record)
            seen[response.data_source] += 1
            if seen[response.data_source] <= self.num_examine:
                logger.info(
                    "[prompt] %s\n[response] %s\n[ground truth] %s\n[score] %s",
                    response.prompt, response.text, response.ground_truth, record,
                )  # fmt: skip
        _refuse_if_all_failed(records)
        if not return_dict:
            return tensor
        names = sorted({name for record in records for name in record})
        return {
            "reward_tensor": tensor,
            "reward_extra_info": {name: [record.get(name) for record in records] for name in names},
        }

    @abstractmethod
    def shaped(self, record: dict[str, Any], response: Response) -> float:
        """The reward of a scored response; further values may be added to the record."""

    def read(self, item: DataProtoItem) -> Response:
        """A row's prompt and response as text."""
        prompts, attention = item.batch["prompts"], item.batch["attention_mask"]
        width = prompts.shape[-1]
        prompt_length, length = int(attention[:width].sum()), int(attention[width:].sum())
        columns = item.non_tensor_batch
        extra_info = dict(columns.get("extra_info") or {})
        extra_info |= {name: columns[key] for key, name in TRAJECTORY_FACTS.items() if key in columns}
        return Response(
            data_source=columns[self.reward_fn_key],
            prompt=self.tokenizer.decode(prompts[width - prompt_length :], skip_special_tokens=True),
            text=self.tokenizer.decode(item.batch["responses"][:length], skip_special_tokens=True),
            length=length,
            ground_truth=columns["reward_model"]["ground_truth"],
            extra_info=extra_info,
        )

    def _scored(self, response: Response) -> dict[str, Any]:
        """The record of one response: `score`, and what else the function gave."""

        def compute() -> Any:
            return self.compute_score(
                data_source=response.data_source,
                solution_str=response.text,
                ground_truth=response.ground_truth,
                extra_info=response.extra_info,
            )

        try:
            result = call_within(self.compute_score_timeout, compute)
        except UserError:
            raise
        except TimeoutError:
            logger.warning("the score function took over %s s; the score is 0: %.200r", self.compute_score_timeout,
                           response.text)  # fmt: skip
            return {"score": 0.0, "score_error": "timeout"}
        except Exception as error:
            logger.warning("the score function failed; the score is 0: %.200r", response.text, exc_info=True)
            return {"score": 0.0, "score_error": repr(error)}
        record = dict(result) if isinstance(result, dict) else {"score": result}
        try:
            record["score"] = float(record["score"])
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"the score function gave {result!r} for data_source {response.data_source!r}: "
                "a number or a dict with a number under `score` is needed"
            ) from None
        if not math.isfinite(record["score"]):
            logger.warning("the score is %s, and counts as 0: %.200r", record["score"], response.text)
            record |= {"score": 0.0, "score_error": f"the score was {record['score']}"}
        return record


def _refuse_if_all_failed(records: list[dict[str, Any]]) -> None:
    errors = [record["score_error"] for record in records if record.get("score_error", "timeout") != "timeout"]
    if errors and len(errors) == len(records):
        raise UserError(f"the score function failed on all {len(records)} responses of a batch, first with {errors[0]}")
