"""Sums, means and variances over the tokens of a mask. All of them ignore masked values even where they are NaN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Σ values·mask over `dim`, or over everything; `values` and `mask` of one shape."""
    kept = torch.where(mask.bool(), values, 0.0) * mask
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean over the mask; 0 where the mask is empty."""
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(values, mask, dim) / (count + 1e-8)


def masked_var(values: Tensor, mask: Tensor) -> Tensor:
    """Unbiased variance over the mask; ValueError where fewer than two tokens are in it."""
    count = mask.sum()
    if count < 2:
        raise ValueError(f"a variance needs at least 2 tokens in the mask, and there are {int(count)}")
    centred = values - masked_mean(values, mask)
    return masked_mean(centred**2, mask) * count / (count - 1)


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """Values of mean 0 (kept with `shift_mean=False`) and variance 1 over the mask; the result is not masked again."""
    mean = masked_mean(values, mask)
    white = (values - mean) * torch.rsqrt(masked_var(values, mask) + 1e-8)
    return white if shift_mean else white + mean


def option(config: Any, name: str, default: Any = None) -> Any:
    """A (dotted) field of a config that may be a dataclass, any object, a mapping or None."""
    for part in name.split("."):
        if config is None:
            return default
        config = config.get(part) if isinstance(config, Mapping) else getattr(config, part, None)
    return default if config is None else config
