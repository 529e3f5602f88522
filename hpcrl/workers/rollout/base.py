"""What a rollout engine is to the agent loop and the trainer: token ids in, sampled token ids and log-probs out."""

from __future__ import annotations

import difflib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpcrl.config.rollout import RolloutConfig
from hpcrl.config.seam import UserError

if TYPE_CHECKING:
    import torch

StopReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SamplingParams:
    """How one turn is sampled."""

    temperature: float = 1.0
    """0: the likeliest token. Log-probs are of logits / temperature (greedy: of the logits)."""
    top_k: int = -1
    """Sample among the k likeliest tokens; -1: all."""
    top_p: float = 1.0
    """Sample among the likeliest tokens whose probabilities, after top-k, sum up to this."""
    min_p: float = 0.0
    """Leave out tokens less likely than this fraction of the likeliest."""
    max_tokens: int | None = None
    """Most tokens to sample; None: up to the engine's longest sequence."""
    stop: tuple[str, ...] = ()
    """Strings that end the turn when they appear in its text."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the turn, besides the model's own end tokens."""
    ignore_eos: bool = False
    """Do not end at the model's own end tokens (benchmarks)."""
    seed: int = 0
    """128-bit key of this turn's randomness (`hpcrl.utils.seed.turn_key`)."""

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise ValueError(f"temperature ≥ 0, 0 < top_p ≤ 1 and 0 ≤ min_p ≤ 1 must hold, got {self}")
        if (self.top_k < 1 and self.top_k != -1) or (self.max_tokens is not None and self.max_tokens < 1):
            raise ValueError(f"top_k must be -1 or at least 1 and max_tokens at least 1, got {self}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @classmethod
    def for_training(cls, rollout: RolloutConfig) -> SamplingParams:
        """As `actor_rollout_ref.rollout` says."""
        temperature = rollout.temperature if rollout.do_sample else 0.0
        return cls(temperature=temperature, top_k=rollout.top_k, top_p=rollout.top_p, min_p=rollout.min_p)

    @classmethod
    def for_validation(cls, rollout: RolloutConfig) -> SamplingParams:
        """As `actor_rollout_ref.rollout.val_kwargs` says."""
        val = rollout.val_kwargs
        return cls(temperature=val.temperature if val.do_sample else 0.0, top_k=val.top_k, top_p=val.top_p)


@dataclass(frozen=True)
class TokenOutput:
    """One sampled turn."""

    token_ids: list[int]
    """Sampled tokens, the one that ended the turn included."""
    log_probs: list[float]
    """log_softmax(logits / temperature) at each of them, before top-k, top-p or min-p cut anything."""
    stop_reason: StopReason
    """stop: an end token or stop string; length: out of tokens; abort: given up by `abort`."""
    weight_version: int = 0
    """Version of the weights that sampled it."""


class RolloutReplica(ABC):
    """One engine with one copy of the weights."""

    @abstractmethod
    def begin(self, request_ids: Sequence[str], poll: Callable[[], None] | None = None) -> None:
        """Announce the trajectories of one batch, in the order that decides who is computed with whom.

        An engine that batches by what has arrived may ignore it. `poll` is called between steps of computation and
        may raise (a stop was asked for): the error then reaches every waiting request.
        """

    @abstractmethod
    def leave(self, request_id: str) -> None:
        """The trajectory is over: nobody waits for it any more, and what was kept for it is given up."""

    @abstractmethod
    async def generate(self, prompt_ids: list[int], sampling_params: SamplingParams, request_id: str) -> TokenOutput:
        """Sample a turn after `prompt_ids`. Turns of one trajectory share the request_id."""

    @abstractmethod
    def update_weights(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take new weights: all parameters by name (a tied one may be left out); later turns carry `version`."""

    @abstractmethod
    def sleep(self) -> None:
        """Give up the memory that sampling needs; nothing can be sampled until `wake_up`."""

    @abstractmethod
    def wake_up(self) -> None:
        """Take the memory back."""

    @abstractmethod
    def abort(self, request_id: str | None = None) -> None:
        """End a waiting request (None: all) with stop_reason `abort`."""

    @abstractmethod
    def health(self) -> dict[str, Any]:
        """Facts for logs: weight version, live and waiting requests, kept tokens."""

    @abstractmethod
    def stop(self) -> None:
        """Give up everything; the replica cannot be used afterwards."""


_REPLICAS = {"hf": "hpcrl.workers.rollout.hf:HFReplica"}


def register_rollout_replica(name: str, target: str) -> None:
    """Make `target` ("package.module:Class") known as engine `name`."""
    _REPLICAS[name] = target


def get_rollout_replica_class(name: str) -> type[RolloutReplica]:
    """The class of the engine `name` (`rollout.name`); imported only now."""
    if name not in _REPLICAS:
        near = difflib.get_close_matches(name, _REPLICAS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"rollout.name: unknown engine {name!r}, known are {sorted(_REPLICAS)}{hint}")
    module, _, attribute = _REPLICAS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
