"""Fan-out of whole batches over the ranks of a worker group, and back in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hpcrl.protocol import DataProto
from hpcrl.trainer.ppo.ray_worker_group import RayWorkerGroup
from hpcrl.workers.engine.packing import balance
from hpcrl.workers.rollout import SamplingParams


def repeat_prompts(prompts: DataProto, n: int) -> DataProto:
    """Every prompt n times, side by side, with `sample` = 0 … n-1."""
    repeated = prompts.repeat(n, interleave=True)
    samples = np.tile(np.arange(n), len(prompts)).astype(object)
    return DataProto.from_dict(
        repeated.batch, dict(repeated.non_tensor_batch) | {"sample": samples}, repeated.meta_info
    )


def generate(
    group: RayWorkerGroup,
    prompts: DataProto,
    *,
    seed: int,
    step: int,
    sampling: SamplingParams,
    max_rows: int = 0,
    stop_margin: float = 0.0,
) -> DataProto:
    """Sample a trajectory a row, in the order of the rows.

    Consecutive rows go to one rank, so that the samples of a prompt stay together. Who is computed together depends
    on the rows and the number of ranks alone.

    Args:
        max_rows: most rows in flight at a time; 0: all.
        stop_margin: seconds before the deadline at which the rollout is given up.
    """
    size = max_rows or len(prompts)
    options = {"seed": seed, "step": step, "sampling": sampling, "stop_margin": stop_margin}
    return DataProto.concat([_generate(group, prompts[i : i + size], options) for i in range(0, len(prompts), size)])


def _generate(group: RayWorkerGroup, prompts: DataProto, options: dict[str, Any]) -> DataProto:
    shares = [prompts[rows] for rows in split_by_prompt(list(prompts.non_tensor_batch["uid"]), group.world_size)]
    outputs = group.execute_each("generate_sequences", shares, **options)
    return DataProto.concat([output for output in outputs if output is not None])


def split_by_prompt(uids: Sequence[str], ranks: int) -> list[list[int]]:
    """Consecutive rows for each rank, as even as prompts allow; rows of one uid stay together."""
    starts = [i for i in range(len(uids)) if i == 0 or uids[i] != uids[i - 1]] + [len(uids)]
    bounds = [starts[round(rank * (len(starts) - 1) / ranks)] for rank in range(ranks + 1)]
    return [list(range(a, b)) for a, b in pairwise(bounds)]


def rank_shares(data: DataProto, ranks: int, balanced: bool) -> list[list[int]]:
    """Rows of each rank: as even in tokens as can be, or consecutive."""
    if balanced:
        return balance(data.batch["attention_mask"].sum(dim=1).tolist(), ranks)
    return [rows.tolist() for rows in np.array_split(np.arange(len(data)), ranks)]


def map_shares(group: RayWorkerGroup, method: str, data: DataProto, balanced: bool) -> DataProto:
    """Call a method with every rank's share of the rows; its answers in the order of the rows."""
    shares = rank_shares(data, group.world_size, balanced)
    outputs = DataProto.concat(group.execute_each(method, [data[share] for share in shares]))
    return outputs[np.argsort(np.concatenate([np.array(share, dtype=np.int64) for share in shares]))]
