"""The parts of a training step that need no workers: advantages, mini-batches, counts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcrl.config import Config
from hpcrl.protocol import DataProto
from hpcrl.trainer.ppo.core_algos import (
    AdaptiveKLController,
    FixedKLController,
    apply_kl_in_reward,
    estimate_advantages,
)
from hpcrl.utils.seed import generator, stable_key

KLController = FixedKLController | AdaptiveKLController


def compute_advantages(batch: DataProto, config: Config, kl_ctrl: KLController) -> dict[str, float]:
    """Put token_level_rewards, advantages and returns, all (bs, R), into the batch; the metrics of the KL penalty."""
    algorithm, fields = config.algorithm, batch.batch
    metrics: dict[str, float] = {}
    fields["token_level_rewards"] = fields["token_level_scores"]
    if algorithm.use_kl_in_reward:
        fields["token_level_rewards"], metrics = apply_kl_in_reward(
            fields["token_level_scores"],
            fields["old_log_probs"],
            fields["ref_log_prob"],
            fields["response_mask"],
            kl_ctrl,
            algorithm.kl_penalty,
        )
    fields["advantages"], fields["returns"] = estimate_advantages(
        algorithm,
        token_level_rewards=fields["token_level_rewards"],
        response_mask=fields["response_mask"],
        index=batch.non_tensor_batch["uid"],
    )
    return metrics


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


def batch_counts(mini: DataProto, ranks: int) -> dict[str, int]:
    """Counts over a whole mini-batch that its losses are normalised by, as `with_batch_info` takes them."""
    return {
        "dp_size": ranks,
        "batch_num_tokens": max(1, int(mini.batch["response_mask"].sum())),
        "global_batch_size": len(mini),
    }
