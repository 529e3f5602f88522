"""The parts of a training step that need no workers: advantages, mini-batches, counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from hpcrl.config import Config
from hpcrl.protocol import DataProto
from hpcrl.trainer.ppo.core_algos import get_adv_estimator_fn, kl_penalty
from hpcrl.utils.seed import generator, stable_key


def apply_kl_penalty(batch: DataProto, kl_ctrl: Any, penalty: str) -> tuple[torch.Tensor, dict[str, float]]:
    """Token rewards (bs, R): the scores minus β times the KL estimate; the controller moves on.

    Source: reward shaping of https://arxiv.org/abs/1909.08593.
    """
    mask = batch.batch["response_mask"]
    kl = kl_penalty(batch.batch["old_log_probs"], batch.batch["ref_log_prob"], penalty) * mask
    beta = kl_ctrl.value
    current = (kl.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean().item()
    kl_ctrl.update(current_kl=current, n_steps=len(batch))
    rewards = batch.batch["token_level_scores"] - beta * kl
    return rewards, {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": beta}


def compute_advantages(batch: DataProto, config: Config) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, both (bs, R), by `algorithm.adv_estimator`."""
    algorithm = config.algorithm
    return get_adv_estimator_fn(algorithm.adv_estimator)(
        token_level_rewards=batch.batch["token_level_rewards"],
        response_mask=batch.batch["response_mask"],
        index=batch.non_tensor_batch["uid"],
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
        config=algorithm,
    )


def mini_batches(batch: DataProto, config: Config, step: int) -> Iterator[DataProto]:
    """The mini-batches of all PPO epochs, each with the counts that its losses are normalised by.

    Rows are cut in the order of the prompts, whatever the number of ranks; `actor.shuffle` draws a new order an epoch.
    """
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    size = actor.ppo_mini_batch_size * rollout.n
    for epoch in range(actor.ppo_epochs):
        order = np.arange(len(batch))
        if actor.shuffle:
            generator(stable_key("mini_batches", actor.data_loader_seed, step, epoch)).shuffle(order)
        for start in range(0, len(batch), size):
            yield batch[order[start : start + size]]


def global_batch_info(mini: DataProto, config: Config, ranks: int) -> dict[str, int | None]:
    """Counts over a whole mini-batch, as `agg_loss` takes them."""
    return {
        "dp_size": ranks,
        "batch_num_tokens": max(1, int(mini.batch["response_mask"].sum())),
        "global_batch_size": len(mini),
        "loss_scale_factor": config.actor_rollout_ref.actor.loss_scale_factor,
    }
