"""Lengths in tokens, and what is done with a prompt that is too long."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from jinja2.exceptions import TemplateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Side = Literal["left", "right", "middle"]
Messages = list[dict[str, str]]


def truncate_tokens(ids: list[int], limit: int, side: Side) -> list[int]:
    """At most `limit` tokens: cut away on the left, on the right, or in the middle (as verl's `data.truncation`)."""
    if len(ids) <= limit:
        return ids
    if side == "left":
        return ids[len(ids) - limit :]
    if side == "right":
        return ids[:limit]
    head = limit // 2
    return ids[:head] + ids[len(ids) - (limit - head) :]


class PromptMeter:
    """Counts a prompt's tokens as a rollout sees them: the chat template with tools, up to the generation prompt."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: list[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer, self.tools, self.template_kwargs = tokenizer, tools or None, template_kwargs or {}

    def lengths(self, prompts: Sequence[Messages]) -> list[int | str]:
        """Tokens of each prompt; where the chat template refuses one, its message instead."""
        try:
            return list(self._count(prompts))
        except (TemplateError, TypeError, ValueError):  # one of them: find out which
            return [self._one(prompt) for prompt in prompts]

    def _one(self, prompt: Messages) -> int | str:
        try:
            return self._count([prompt])[0]
        except (TemplateError, TypeError, ValueError) as error:
            return f"prompt: the chat template refuses it ({error})"

    def _count(self, prompts: Sequence[Messages]) -> list[int]:
        if not prompts:
            return []
        texts = self.tokenizer.apply_chat_template(
            list(prompts), tools=self.tools, add_generation_prompt=True, tokenize=False, **self.template_kwargs
        )
        return [len(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]

    def fingerprint(self) -> str:
        """A hash of everything that a prompt's length depends on, the prompt aside."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        vocabulary = backend.to_str() if backend is not None else json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        parts = [vocabulary, self.tokenizer.chat_template, self.tools, self.template_kwargs]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def length_statistics(counts: Counter[int]) -> dict[str, Any]:
    """Minimum, mean, 95th percentile, maximum and a histogram in powers of two, of length -> rows.

    The 95th percentile is the smallest length that at least 95 % of the rows do not exceed.
    """
    total = sum(counts.values())
    if not total:
        return {"min": None, "mean": None, "p95": None, "max": None, "histogram": []}
    seen, p95 = 0, 0
    for length in sorted(counts):
        seen += counts[length]
        if seen * 100 >= total * 95:
            p95 = length
            break
    bins: Counter[int] = Counter()
    for length, rows in counts.items():
        bins[length.bit_length()] += rows
    histogram = [{"from": 2 ** (k - 1) if k else 0, "below": 2**k, "rows": bins[k]} for k in sorted(bins)]
    mean = sum(length * rows for length, rows in counts.items()) / total
    return {"min": min(counts), "mean": round(mean, 3), "p95": p95, "max": max(counts), "histogram": histogram}
