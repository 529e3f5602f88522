"""The embedded engine: generation over a transformers model in the caller's own process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hpcrl.config.data import DataConfig
from hpcrl.config.rollout import RolloutConfig
from hpcrl.workers.rollout.base import RolloutReplica, SamplingParams, TokenOutput
from hpcrl.workers.rollout.hf_engine import HFEngine, KeptRow, Row
from hpcrl.workers.rollout.hf_model import copy_weights, load_model

logger = logging.getLogger(__name__)


@dataclass
class _Waiting:
    row: Row
    answer: asyncio.Future[TokenOutput]


class HFReplica(RolloutReplica):
    """Computes when every live trajectory waits for it.

    Who is computed together is then a matter of the trajectories alone: a tool that takes longer changes nothing.
    The model is the replica's own copy; `update_weights` brings it up to date.
    """

    def __init__(
        self,
        config: RolloutConfig,
        data: DataConfig,
        model_path: str | PreTrainedModel,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        device: str = "cpu",
        trust_remote_code: bool = False,
    ) -> None:
        """Args:
        config: `max_num_seqs` and `dtype` are looked at.
        data: prompt and response length bound a sequence.
        model_path: folder or hub id, or a model, which then belongs to the replica.
        tokenizer: for its end token and for stop strings.
        """
        if isinstance(model_path, str):
            model_path = load_model(model_path, config.dtype, device, trust_remote_code)
        self.model = model_path.eval().requires_grad_(False)
        self.version = 0
        self.max_length = data.max_prompt_length + data.max_response_length
        self._engine: HFEngine | None = HFEngine(self.model, tokenizer, config.max_num_seqs)
        self._asleep = False
        self._order: dict[str, int] = {}
        self._live: set[str] = set()
        self._poll: Callable[[], None] = _never
        self._waiting: dict[str, _Waiting] = {}
        self._kept: dict[str, KeptRow] = {}

    def begin(self, request_ids: Sequence[str], poll: Callable[[], None] | None = None) -> None:
        if len(set(request_ids)) != len(request_ids):
            raise ValueError("two trajectories of a batch have the same request_id")
        self._order = {request_id: i for i, request_id in enumerate(request_ids)}
        self._live = set(request_ids)
        self._poll = poll or _never
        self._kept.clear()

    def leave(self, request_id: str) -> None:
        self._live.discard(request_id)
        self._kept.pop(request_id, None)
        self._compute_soon()

    async def generate(self, prompt_ids: list[int], sampling_params: SamplingParams, request_id: str) -> TokenOutput:
        """Sample a turn; a request_id that `begin` did not name is waited for by nobody.

        Raises:
            ValueError: the prompt is empty or leaves no room, or the same request already waits.
        """
        if self._engine is None or self._asleep:
            raise RuntimeError("the rollout engine is asleep or stopped: wake_up() it before sampling")
        if request_id in self._waiting:
            raise ValueError(f"request {request_id!r} already waits for a turn")
        room = self.max_length - len(prompt_ids)
        if not prompt_ids or room < 1:
            raise ValueError(
                f"a prompt of {len(prompt_ids)} tokens: at least 1, at most {self.max_length - 1} can be continued"
            )
        max_tokens = min(room, sampling_params.max_tokens or room)
        kept = self._kept.pop(request_id, None)
        if kept is not None and (len(kept.tokens) >= len(prompt_ids) or prompt_ids[: len(kept.tokens)] != kept.tokens):
            kept = None
        row = Row(request_id, list(prompt_ids), sampling_params, max_tokens, kept)
        waiting = _Waiting(row, asyncio.get_running_loop().create_future())
        self._waiting[request_id] = waiting
        self._compute_soon()
        try:
            return await waiting.answer
        finally:
            if self._waiting.get(request_id) is waiting:  # cancelled while it waited
                del self._waiting[request_id]

    def _compute_soon(self) -> None:
        if self._waiting and self._live <= self._waiting.keys():
            asyncio.get_running_loop().call_soon(self._compute)

    def _compute(self) -> None:
        """Run all waiting requests, when nobody is missing."""
        if not self._waiting or not self._live <= self._waiting.keys() or self._engine is None:
            return
        behind = len(self._order)
        requests = sorted(
            self._waiting.values(), key=lambda w: (self._order.get(w.row.request_id, behind), w.row.request_id)
        )
        self._waiting = {}
        requests = [request for request in requests if not request.answer.done()]
        try:
            self._engine.run([request.row for request in requests], self._poll, self._keep)
        except BaseException as error:
            _refuse(requests, error)
            if not isinstance(error, Exception):
                raise
            return
        for request in requests:
            request.answer.set_result(request.row.output(self.version))

    def _keep(self, row: Row, copy: Callable[[], KeptRow]) -> None:
        """Keep what a live trajectory may need for its next turn; one that is out of tokens has none."""
        if row.stop_reason == "stop" and row.request_id in self._live:
            self._kept[row.request_id] = copy()

    def update_weights(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy the weights into the replica's model.

        Raises:
            ValueError: names or shapes do not fit; the replica must then be given all weights again.
        """
        self._kept.clear()
        copy_weights(self.model, tensors)
        self.version = version

    def sleep(self) -> None:
        """Keys and values are given up; the weights stay, since they take the place of nothing on this device."""
        self._kept.clear()
        self._asleep = True

    def wake_up(self) -> None:
        self._asleep = False

    def abort(self, request_id: str | None = None) -> None:
        for name in [request_id] if request_id is not None else list(self._waiting):
            request = self._waiting.pop(name, None)
            if request is not None and not request.answer.done():
                request.answer.set_result(TokenOutput([], [], "abort", self.version))

    def health(self) -> dict[str, Any]:
        return {
            "alive": self._engine is not None,
            "asleep": self._asleep,
            "weight_version": self.version,
            "live": len(self._live),
            "waiting": len(self._waiting),
            "kept_tokens": sum(len(kept.tokens) for kept in self._kept.values()),
        }

    def stop(self) -> None:
        self.abort()
        self._kept.clear()
        self._engine = None


def _refuse(requests: Sequence[_Waiting], error: BaseException) -> None:
    for request in requests:
        if not request.answer.done():
            request.answer.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))


def _never() -> None:
    """Poll that never asks for a stop."""
