"""Batched generation over a transformers model. What is computed together, and in which shape, depends on the requests
and their order alone, so that equal requests give equal bits.

Rows are prefilled (equal prompts once, continued trajectories from their kept keys and values), then decoded together.
Rows that ended stay in the batch until it has shrunk enough; then it is cut down to the live ones and filled up from
the queue.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hpcrl.utils.seed import generator
from hpcrl.workers.rollout.base import SamplingParams, StopReason, TokenOutput
from hpcrl.workers.rollout.hf_cache import RaggedCache
from hpcrl.workers.rollout.hf_model import MaskMaker, end_token_ids
from hpcrl.workers.rollout.sampling import Sampler

PREFILL_TOKENS = 8192
"""Tokens, padding included, of one forward pass of a prefill."""
LIVE_FRACTION = 0.75
"""The batch is cut down to its live rows when they are at most this fraction of it."""
STOP_STRING_TOKENS = 32
"""Tokens at the end of a turn in which a stop string is looked for."""


@dataclass
class KeptRow:
    """Keys and values of a trajectory's first tokens, kept between two turns."""

    tokens: list[int]
    layers: list[torch.Tensor]


@dataclass
class Row:
    """One request on its way through the engine."""

    request_id: str
    prompt: list[int]
    params: SamplingParams
    max_tokens: int
    kept: KeptRow | None = None
    """What the trajectory's turn before left; a prefix of `prompt`."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stop_reason: StopReason | None = None
    """None while it is being sampled."""

    def __post_init__(self) -> None:
        count = self.max_tokens
        self.uniforms = [0.0] * count if self.params.greedy else generator(self.params.seed).random(count).tolist()

    def output(self, version: int) -> TokenOutput:
        return TokenOutput(self.tokens, self.log_probs, self.stop_reason or "abort", version)


@dataclass
class Batch:
    """Rows that are decoded together: their cache and the logits (rows, vocabulary) of their next tokens."""

    rows: list[Row]
    cache: RaggedCache
    logits: torch.Tensor

    def __post_init__(self) -> None:
        self.sampler = Sampler([row.params for row in self.rows], self.logits.device)

    def extended(self, other: Batch) -> Batch:
        self.cache.extend(other.cache)
        return Batch(self.rows + other.rows, self.cache, torch.cat([self.logits, other.logits]))

    def selected(self, live: list[int]) -> Batch:
        index = torch.tensor(live, device=self.logits.device)
        self.cache.select(index)
        return Batch([self.rows[i] for i in live], self.cache, self.logits.index_select(0, index))


class HFEngine:
    """Runs lists of rows to their end on one model."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, max_num_seqs: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_num_seqs = max_num_seqs
        self.device = next(model.parameters()).device
        self.end_tokens = end_token_ids(model, tokenizer)
        arguments = inspect.signature(type(model).forward).parameters
        self._cache_argument = "cache" if "cache" in arguments else "past_key_values"
        self._masks = MaskMaker(model)

    @torch.inference_mode()
    def run(
        self, rows: Sequence[Row], poll: Callable[[], None], on_end: Callable[[Row, Callable[[], KeptRow]], None]
    ) -> None:
        """Sample every row's turn; results stand in the rows.

        Args:
            rows: in the order that decides who is computed together.
            poll: called between forward passes; what it raises ends the run.
            on_end: told of each row that ended, with a function that copies its keys and values out.
        """
        queue = list(rows)
        batch: Batch | None = None
        while queue or batch is not None:
            room = self.max_num_seqs - (len(batch.rows) if batch else 0)
            arriving, queue = queue[:room], queue[room:]
            batch = self._admit(batch, arriving, poll)
            batch = self._decode(batch, bool(queue), poll, on_end)

    def _admit(self, batch: Batch | None, rows: Sequence[Row], poll: Callable[[], None]) -> Batch:
        """Prefill new rows and join them to the batch."""
        for group in ([row for row in rows if row.kept is None], [row for row in rows if row.kept is not None]):
            if group:
                arriving = self._prefill(group, poll)
                batch = arriving if batch is None else batch.extended(arriving)
        if batch is None:
            raise ValueError("nothing to admit and nothing running")
        return batch

    def _prefill(self, rows: list[Row], poll: Callable[[], None]) -> Batch:
        """The rows' batch, ready to sample. Equal prompts without kept keys and values are computed once."""
        order: dict[tuple[int, ...] | str, int] = {}
        of_row = [order.setdefault(row.request_id if row.kept else tuple(row.prompt), len(order)) for row in rows]
        firsts = [rows[of_row.index(i)] for i in range(len(order))]
        new = max(len(row.prompt) - (len(row.kept.tokens) if row.kept else 0) for row in firsts)
        size = max(1, PREFILL_TOKENS // new)
        batch: Batch | None = None
        for start in range(0, len(firsts), size):
            poll()
            part = self._prefill_part(firsts[start : start + size], new)
            batch = part if batch is None else batch.extended(part)
        assert batch is not None
        if len(firsts) < len(rows):
            batch = batch.selected(of_row)
        batch.rows = rows
        return Batch(rows, batch.cache, batch.logits)

    def _prefill_part(self, rows: list[Row], new: int) -> Batch:
        """One forward pass over the last `new` tokens of each prompt, padded on the left where it is shorter."""
        longest = max(len(row.prompt) for row in rows)
        kept = [row.kept.layers for row in rows if row.kept is not None]
        cache = RaggedCache.of(kept, longest) if kept else RaggedCache(len(rows), longest)
        ids = torch.zeros(len(rows), new, dtype=torch.int64)
        for i, row in enumerate(rows):
            tail = row.prompt[-new:]
            ids[i, new - len(tail) :] = torch.tensor(tail)
        positions = torch.tensor([len(row.prompt) for row in rows])[:, None] - new + torch.arange(new)
        return Batch(rows, cache, self._forward(ids, positions, cache, longest))

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, cache: RaggedCache, width: int) -> torch.Tensor:
        """(bs, vocabulary) logits after the last of the tokens `ids` (bs, S), which stand at `positions`."""
        ids, positions = ids.to(self.device), positions.to(self.device)
        cache.place(positions, width)
        output = self.model(
            input_ids=ids,
            attention_mask=self._masks(positions, width),
            position_ids=positions.clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        return output.logits[:, -1]

    def _decode(
        self,
        batch: Batch,
        waiting: bool,
        poll: Callable[[], None],
        on_end: Callable[[Row, Callable[[], KeptRow]], None],
    ) -> Batch | None:
        """Sample and step. Returns the live rows when others wait and there is room, None when none is left."""
        while True:
            poll()
            self._sample(batch)
            live = [i for i, row in enumerate(batch.rows) if row.stop_reason is None]
            if len(live) <= LIVE_FRACTION * len(batch.rows):
                _report_ended(batch, on_end)
                if not live:
                    return None
                batch = batch.selected(live)
                if waiting:
                    self._step(batch)
                    return batch
            self._step(batch)

    def _sample(self, batch: Batch) -> None:
        """Append a token to every live row, and end those that are complete."""
        last = [min(len(row.tokens), row.max_tokens - 1) for row in batch.rows]
        uniforms = torch.tensor([row.uniforms[i] for row, i in zip(batch.rows, last, strict=True)], dtype=torch.float64)
        tokens, log_probs = batch.sampler.sample(batch.logits, uniforms.to(self.device))
        for row, token, log_prob in zip(batch.rows, tokens.tolist(), log_probs.tolist(), strict=True):
            if row.stop_reason is None:
                row.tokens.append(token)
                row.log_probs.append(log_prob)
                row.stop_reason = self._ended(row, token)

    def _ended(self, row: Row, token: int) -> StopReason | None:
        params = row.params
        if token in params.stop_token_ids or (token in self.end_tokens and not params.ignore_eos):
            return "stop"
        if params.stop and self._has_stop_string(row):
            return "stop"
        return "length" if len(row.tokens) >= row.max_tokens else None

    def _has_stop_string(self, row: Row) -> bool:
        if self.tokenizer is None:
            raise ValueError("stop strings need a tokenizer")
        text = self.tokenizer.decode(row.tokens[-STOP_STRING_TOKENS:])
        return any(stop in text for stop in row.params.stop)

    def _step(self, batch: Batch) -> None:
        """Forward pass over the rows' last tokens. Rows that ended are computed again in place, and not looked at."""
        lengths = [len(row.prompt) + len(row.tokens) for row in batch.rows]
        width = max(lengths)
        ids = torch.tensor([row.tokens[-1] for row in batch.rows])[:, None]
        batch.logits = self._forward(ids, torch.tensor(lengths)[:, None] - 1, batch.cache, width)


def _report_ended(batch: Batch, on_end: Callable[[Row, Callable[[], KeptRow]], None]) -> None:
    for i, row in enumerate(batch.rows):
        if row.stop_reason is not None:

            def copy(i: int = i, row: Row = row) -> KeptRow:
                known = row.prompt + row.tokens[:-1]  # the last token was not computed
                return KeptRow(known, batch.cache.take(i, len(known)))

            on_end(row, copy)
