"""From a matrix of token losses to one number, normalised by counts over the global batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hpcrl.trainer.ppo.core_algos.masked import masked_sum, option


def agg_loss(
    loss_mat: Tensor,
    loss_mask: Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: int | Tensor | None = None,
    global_batch_size: int | Tensor | None = None,
    loss_scale_factor: int | None = None,
) -> Tensor:
    """Aggregate token losses so that the gradient is that of the global batch, however it is cut and sharded.

    The result is meant for a gradient that is averaged over `dp_size` ranks (as FSDP does), hence its factor dp_size.

    Args:
        loss_mat: token losses (bs, response_length).
        loss_mask: 1 on the tokens that count, (bs, response_length).
        loss_agg_mode: with L the losses, m the mask, T the valid tokens and B the non-empty rows of the global batch:
            token-mean: Σ L·m / T;
            token-sum: Σ L·m;
            seq-mean-token-sum: Σ_rows Σ_t L·m / B;
            seq-mean-token-mean: Σ_rows (Σ_t L·m / Σ_t m) / B;
            seq-mean-token-sum-norm: seq-mean-token-sum / loss_scale_factor.
        batch_num_tokens: T; None: of this matrix.
        global_batch_size: B; None: of this matrix.
        loss_scale_factor: constant divisor; None: response_length.

    Returns: a scalar. Raises ValueError for an unknown mode, and for a count that is None with dp_size > 1.
    """
    if loss_agg_mode == "token-sum":
        return masked_sum(loss_mat, loss_mask) * dp_size
    if loss_agg_mode == "token-mean":
        if batch_num_tokens is None:
            if dp_size > 1:
                raise ValueError("(global) batch_num_tokens is required when dp_size > 1")
            batch_num_tokens = loss_mask.sum()
        return masked_sum(loss_mat, loss_mask) / _at_least_one(batch_num_tokens) * dp_size
    if loss_agg_mode not in ("seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"):
        raise ValueError(f"Invalid loss_agg_mode: {loss_agg_mode}")
    lengths = loss_mask.sum(-1)
    if global_batch_size is None:
        if dp_size > 1:
            raise ValueError("global_batch_size is required when dp_size > 1")
        global_batch_size = (lengths > 0).sum()
    rows = masked_sum(loss_mat, loss_mask, dim=-1)
    if loss_agg_mode == "seq-mean-token-mean":
        rows = rows / (lengths + 1e-8)
    if loss_agg_mode == "seq-mean-token-sum-norm":
        rows = rows / (loss_mask.shape[-1] if loss_scale_factor is None else loss_scale_factor)
    return rows.sum() / _at_least_one(global_batch_size) * dp_size


def _at_least_one(count: int | Tensor) -> int | Tensor:
    """A batch without a single valid token has loss 0, not NaN."""
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


class _WithBatchInfo:
    """A config seen through, with the counts of the global batch added."""

    def __init__(self, config: Any, info: dict[str, Any]) -> None:
        self._config = config
        self.global_batch_info = info

    def __getattr__(self, name: str) -> Any:
        if isinstance(self._config, Mapping):
            if name not in self._config:
                raise AttributeError(name)
            return self._config[name]
        return getattr(self._config, name)


def with_batch_info(
    config: Any,
    *,
    dp_size: int = 1,
    batch_num_tokens: int | None = None,
    global_batch_size: int | None = None,
) -> Any:
    """The actor's config with `global_batch_info`, the counts that policy losses hand on to `agg_loss`.

    Args:
        config: dataclass, object or mapping; `loss_scale_factor` is taken from it.
        dp_size: ranks that the gradient is averaged over.
        batch_num_tokens: tokens with response_mask 1 in the mini-batch, over all ranks.
        global_batch_size: non-empty samples in the mini-batch, over all ranks.
    """
    info = {
        "dp_size": dp_size,
        "batch_num_tokens": batch_num_tokens,
        "global_batch_size": global_batch_size,
        "loss_scale_factor": option(config, "loss_scale_factor"),
    }
    return _WithBatchInfo(config, info)


def batch_info(config: Any) -> dict[str, Any]:
    """What a policy loss hands on to `agg_loss`; without counts, those of the matrix itself are used."""
    info = option(config, "global_batch_info")
    if info is not None:
        return dict(info)
    return {"loss_scale_factor": option(config, "loss_scale_factor")}


def compute_entropy_loss(logits: Tensor, response_mask: Tensor, loss_agg_mode: str = "token-mean") -> Tensor:
    """Entropy in nats of softmax(logits), aggregated; logits (bs, response_length, vocabulary), mask (bs, length)."""
    log_probs = torch.log_softmax(logits, dim=-1)
    return agg_loss(-(log_probs.exp() * log_probs).sum(-1), response_mask, loss_agg_mode)
