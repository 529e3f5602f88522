"""Samples grouped by the prompt that they answer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

Index = Sequence[Hashable] | np.ndarray | Tensor
"""The prompt that each sample answers: any hashable value, strings among them; equal values form a group."""


class Groups:
    """Samples grouped by prompt: the one place where group means and the like are computed."""

    def __init__(self, index: Index, like: Tensor) -> None:
        """`index`: (bs,); `like`: a tensor on the device, and of the dtype, of the scores."""
        values = index.tolist() if isinstance(index, Tensor | np.ndarray) else list(index)
        numbers: dict[Hashable, int] = {}
        members = [numbers.setdefault(value, len(numbers)) for value in values]
        self.of_sample = torch.tensor(members, device=like.device, dtype=torch.long)
        self.count = len(numbers)
        self.sizes = self.total(torch.ones(len(members), device=like.device, dtype=like.dtype))

    def total(self, values: Tensor) -> Tensor:
        """Sum of each sample's group, (bs,) to (bs,)."""
        sums = torch.zeros(self.count, device=values.device, dtype=values.dtype)
        return sums.index_add(0, self.of_sample, values)[self.of_sample]

    def mean(self, values: Tensor) -> Tensor:
        """Mean of each sample's group, (bs,) to (bs,)."""
        return self.total(values) / self.sizes

    def std(self, values: Tensor) -> Tensor:
        """Unbiased standard deviation of each sample's group, (bs,) to (bs,); 0 for a group of one."""
        squares = self.total((values - self.mean(values)).square())
        return (squares / (self.sizes - 1).clamp(min=1)).sqrt()

    @property
    def single(self) -> Tensor:
        """Which samples are alone in their group, (bs,)."""
        return self.sizes == 1
