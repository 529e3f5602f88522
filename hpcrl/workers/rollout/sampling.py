"""From logits to tokens: inverse-CDF sampling with one uniform number a position, drawn ahead
by a counter-based generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpcrl.workers.rollout.base import SamplingParams


class Sampler:
    """The sampling parameters of a batch's rows as tensors, and the sampling step."""

    def __init__(self, params: Sequence[SamplingParams], device: torch.device) -> None:
        def column(values: list[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        self.greedy = column([p.greedy for p in params], torch.bool)
        self.temperature = column([p.temperature or 1.0 for p in params], torch.float32)
        self.top_k = column([p.top_k if p.top_k > 0 else 2**31 for p in params], torch.int64)
        self.top_p = column([p.top_p for p in params], torch.float32)
        self.min_p = column([p.min_p for p in params], torch.float32)
        self.any_greedy = bool(self.greedy.any())
        self.all_greedy = bool(self.greedy.all())
        self.scales = bool((self.temperature != 1).any())
        cuts = (self.top_k < 2**31) | (self.top_p < 1) | (self.min_p > 0)
        self.any_cut = bool((cuts & ~self.greedy).any())

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One token a row.

        Args:
            logits: (bs, vocabulary).
            uniforms: (bs,) float64 in [0, 1).

        Returns:
            tokens (bs,) int64, and their log-probs (bs,) float32: log_softmax(logits / temperature) before any cut.
        """
        logits = logits.float()
        if self.scales:
            logits = logits / self.temperature
        log_probs = torch.log_softmax(logits, dim=-1)
        if self.all_greedy:
            tokens = logits.argmax(dim=-1)
        else:
            probs = log_probs.exp()
            if self.any_cut:
                probs = probs * self._kept(logits)
            tokens = inverse_cdf(probs, uniforms)
            if self.any_greedy:
                tokens = torch.where(self.greedy[:, 0], logits.argmax(dim=-1), tokens)
        return tokens, log_probs.gather(1, tokens[:, None])[:, 0]

    def _kept(self, logits: torch.Tensor) -> torch.Tensor:
        """(bs, vocabulary) bool: tokens that top-k, then top-p among those, then min-p leave."""
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        ranks = torch.arange(logits.shape[1], device=logits.device)
        ordered = ordered.masked_fill(ranks >= self.top_k, float("-inf"))
        probs = torch.softmax(ordered, dim=-1)
        before = probs.cumsum(dim=-1, dtype=torch.float64) - probs
        kept = (ranks < self.top_k) & (before < self.top_p) & (probs >= self.min_p * probs[:, :1])
        kept[:, 0] = True
        return torch.zeros_like(kept).scatter_(1, order, kept)


def inverse_cdf(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """(bs,) the token at which the cumulative probability passes `uniforms`, in the vocabulary's order.

    Args:
        probs: (bs, vocabulary), not negative; they need not sum up to 1.
        uniforms: (bs,) float64 in [0, 1).
    """
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, uniforms[:, None] * total, right=True)
    last = torch.searchsorted(cumulative, total.contiguous())  # rounding must not lead past the last possible token
    return torch.minimum(tokens, last)[:, 0]
