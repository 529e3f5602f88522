"""Numbers of a step and of a validation, under the names that verl's users know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import torch

from hpcrl.protocol import DataProto
from hpcrl.workers.rollout.agent_loop.metrics import rollout_metrics


@contextmanager
def timed(metrics: dict[str, float], name: str) -> Iterator[None]:
    """Add the block's seconds to `timing_s/<name>`."""
    start = perf_counter()
    yield
    key = f"timing_s/{name}"
    metrics[key] = metrics.get(key, 0.0) + perf_counter() - start


def spread(name: str, values: torch.Tensor) -> dict[str, float]:
    """Mean, max and min of some values."""
    if values.numel() == 0:
        return {}
    values = values.float()
    return {
        f"{name}/mean": values.mean().item(),
        f"{name}/max": values.max().item(),
        f"{name}/min": values.min().item(),
    }


def batch_metrics(batch: DataProto, max_response_length: int) -> dict[str, float]:
    """Scores, advantages, lengths and turns of a step's samples, and how far engine and trainer are apart."""
    mask = batch.batch["response_mask"].bool()
    response_length = batch.batch["attention_mask"].shape[1] - batch.batch["prompts"].shape[1]
    lengths = batch.batch["attention_mask"][:, -response_length:].sum(dim=1)
    prompt_lengths = batch.batch["attention_mask"][:, :-response_length].sum(dim=1)
    return {
        **spread("critic/score", batch.batch["token_level_scores"].sum(dim=1)),
        **spread("critic/rewards", batch.batch["token_level_rewards"].sum(dim=1)),
        **spread("critic/advantages", batch.batch["advantages"][mask]),
        **spread("critic/returns", batch.batch["returns"][mask]),
        **spread("response_length", lengths),
        "response_length/clip_ratio": (lengths >= max_response_length).float().mean().item(),
        **spread("prompt_length", prompt_lengths),
        **rollout_metrics(batch),
        **_mismatch_metrics(batch, mask),
    }


def _mismatch_metrics(batch: DataProto, mask: torch.Tensor) -> dict[str, float]:
    if "rollout_log_probs" not in batch.batch:
        return {}
    gap = (batch.batch["rollout_log_probs"].exp() - batch.batch["old_log_probs"].exp())[mask].abs()
    if gap.numel() == 0:
        return {}
    return {
        "training/rollout_probs_diff_mean": gap.mean().item(),
        "training/rollout_probs_diff_max": gap.max().item(),
    }


def throughput_metrics(batch: DataProto, metrics: dict[str, float], ranks: int) -> dict[str, float]:
    """Tokens a step, and tokens a second and rank; time a token of each phase."""
    tokens = int(batch.batch["attention_mask"].sum())
    sampled = int(batch.batch["response_mask"].sum())
    seconds = metrics["timing_s/step"]
    per_token = {
        f"timing_per_token_ms/{name}": metrics[f"timing_s/{name}"] * 1000 / max(1, sampled if name == "gen" else tokens)
        for name in ("gen", "old_log_prob", "ref", "adv", "update_actor")
        if f"timing_s/{name}" in metrics
    }
    return {
        "perf/total_num_tokens": tokens,
        "perf/time_per_step": seconds,
        "perf/throughput": tokens / seconds / ranks,
    } | per_token


def validation_metrics(
    batch: DataProto, scores: Sequence[float], accuracies: Sequence[float] | None
) -> dict[str, float]:
    """val-core/<data_source>/<acc or reward>/{mean@n, best@n/mean} and val-aux of a validation's samples."""
    groups: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    values = accuracies if accuracies is not None else scores
    for source, uid, value in zip(
        batch.non_tensor_batch["data_source"], batch.non_tensor_batch["uid"], values, strict=True
    ):
        groups[source][uid].append(float(value or 0.0))  # a row without a value failed
    variable = "acc" if accuracies is not None else "reward"
    metrics: dict[str, float] = {}
    for source, prompts in groups.items():
        n = max(len(samples) for samples in prompts.values())
        metrics[f"val-core/{source}/{variable}/mean@{n}"] = float(np.mean([np.mean(s) for s in prompts.values()]))
        if n > 1:
            metrics[f"val-core/{source}/{variable}/best@{n}/mean"] = float(np.mean([max(s) for s in prompts.values()]))
        rows = [score for score, s in zip(scores, batch.non_tensor_batch["data_source"], strict=True) if s == source]
        metrics[f"val-aux/{source}/reward/mean@{n}"] = float(np.mean(rows))
    turns = np.array([int(turns) for turns in batch.non_tensor_batch["__num_turns__"]])
    return metrics | {"val-aux/num_turns/mean": float(turns.mean())}


def pass_at_k(correct: int, n: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is right, from `correct` of n.

    Source: https://arxiv.org/abs/2107.03374, equation 1.
    """
    if n - correct < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(n - correct + 1, n + 1)))
