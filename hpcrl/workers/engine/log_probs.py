"""Log-probs and entropies of the next token, over the vocabulary head in chunks: the logits are never held whole."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 2**24
"""Logits held at a time (64 MB in float32)."""


class NextTokenLogProbs(nn.Module):
    """A causal language model that answers log-probs of given next tokens instead of logits.

    Being the root of FSDP, its forward holds the vocabulary head gathered while the chunks are computed.
    """

    def __init__(self, causal_lm: nn.Module) -> None:
        super().__init__()
        self.causal_lm = causal_lm

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        with_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probs and, if asked for, entropies in float32, both (rows * row_length,), of logits / temperature.

        Args:
            input_ids, position_ids, targets: (rows, row_length) int64.
            attention_mask: (rows, 1, row_length, row_length) bool.
        """
        hidden = self.causal_lm.base_model(
            input_ids=input_ids, position_ids=position_ids, attention_mask=attention_mask, use_cache=False
        ).last_hidden_state
        head = self.causal_lm.get_output_embeddings()
        softcap = getattr(self.causal_lm.config, "final_logit_softcapping", None)
        flat, flat_targets = hidden.flatten(0, 1), targets.flatten()
        size = max(1, CHUNK_ELEMENTS // head.weight.shape[0])
        many = len(flat) > size and torch.is_grad_enabled()
        log_probs, entropies = [], []
        for chunk, chunk_targets in zip(flat.split(size), flat_targets.split(size), strict=True):
            arguments = (chunk, head.weight, head.bias, chunk_targets, temperature, softcap, with_entropy)
            result = checkpoint(_chunk, *arguments, use_reentrant=False) if many else _chunk(*arguments)
            log_probs.append(result[0])
            entropies.append(result[1])
        # Flat: FSDP hooks what its root returns, and a view would lose the hook at the first in-place operation.
        return torch.cat(log_probs), torch.cat(entropies) if with_entropy else None


def _chunk(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    temperature: float,
    softcap: float | None,
    with_entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    logits = nn.functional.linear(hidden, weight, bias).float()
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    log_probs_all = torch.log_softmax(logits / temperature, dim=-1)
    log_probs = log_probs_all.gather(-1, targets[:, None]).squeeze(-1)
    entropy = -(log_probs_all.exp() * log_probs_all).sum(-1) if with_entropy else None
    return log_probs, entropy
