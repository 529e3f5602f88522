"""AdamW and the learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from hpcrl.config.actor import OptimConfig


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the parameters that are trained."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True)


def build_schedule(optimizer: torch.optim.Optimizer, config: OptimConfig, total_steps: int) -> LambdaLR:
    """The learning rate of each optimiser step: linear warm-up, then constant, linear or cosine decay."""
    return LambdaLR(optimizer, lambda step: lr_factor(step, config, total_steps))


def lr_factor(step: int, config: OptimConfig, total_steps: int) -> float:
    """Learning rate of a step (from 0) as a fraction of `config.lr`."""
    warmup = config.lr_warmup_steps
    if warmup < 0:
        warmup = int(config.lr_warmup_steps_ratio * total_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if config.lr_scheduler_type == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    if config.lr_scheduler_type == "linear":
        shape = 1.0 - progress
    else:
        shape = 0.5 * (1.0 + math.cos(2.0 * math.pi * config.num_cycles * progress))
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * max(0.0, shape)
