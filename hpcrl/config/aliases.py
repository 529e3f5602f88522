"""Spellings of the documents and of published runs that mean one of hpcrl's own: the table, and its application."""

from __future__ import annotations

import logging
from typing import Any

from hpcrl.config.messages import shown

logger = logging.getLogger(__name__)

RENAMED_KEYS: dict[str, str] = {
    "actor_rollout_ref.actor.lr": "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.max_grad_norm": "actor_rollout_ref.actor.grad_clip",
    "actor_rollout_ref.actor.gradient_checkpointing": "actor_rollout_ref.model.enable_gradient_checkpointing",
}
"""Other spelling of a key -> our key; the value is taken over as it is."""

GLOBAL_COUNTS: dict[str, str] = {
    f"actor_rollout_ref.{key}": f"actor_rollout_ref.{key}_per_gpu"
    for key in (
        "actor.ppo_micro_batch_size",
        "rollout.log_prob_micro_batch_size",
        "ref.log_prob_micro_batch_size",
    )
}
"""Micro-batch sizes over all ranks -> the key of one rank's share."""

RENAMED_VALUES: dict[str, dict[str, str]] = {
    "actor_rollout_ref.actor.kl_loss_type": {"low_var": "low_var_kl", "low_var+": "low_var_kl+"},
    "algorithm.kl_penalty": {"low_var": "low_var_kl", "low_var+": "low_var_kl+"},
    "actor_rollout_ref.actor.loss_agg_mode": {"sequence-mean": "seq-mean-token-mean"},
    "actor_rollout_ref.rollout.name": {"tensorrt-llm": "trtllm"},
    "actor_rollout_ref.model.backend": {"fsdp": "fsdp2"},
}
"""Key -> other spelling of a value -> our value."""

_ABSENT = object()


def lookup(raw: Any, key: str) -> Any:
    """The value at a dotted key of nested dicts, or `_ABSENT`."""
    for part in key.split("."):
        if not isinstance(raw, dict) or part not in raw:
            return _ABSENT
        raw = raw[part]
    return raw


def present(value: Any) -> bool:
    return value is not _ABSENT


def _take(raw: dict[str, Any], key: str) -> Any:
    parent, _, last = key.rpartition(".")
    return lookup(raw, parent).pop(last)


def put(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key, making the sections on the way; a non-section in the way is left for validation to refuse."""
    *sections, last = key.split(".")
    for section in sections:
        raw = raw.setdefault(section, {})
        if not isinstance(raw, dict):
            return
    raw[last] = value


def _move(raw: dict[str, Any], old: str, new: str, value: Any, problems: list[str]) -> None:
    _take(raw, old)
    there = lookup(raw, new)
    if present(there) and there is not None and value is not None and there != value:
        problems.append(f"{old} ({shown(value)}) and {new} ({shown(there)}) are one option and differ: give one")
    elif value is not None:
        put(raw, new, value)


def _ranks(raw: dict[str, Any]) -> int | None:
    """nnodes x n_gpus_per_node as far as the raw config says; None where they are no numbers."""
    from hpcrl.config.trainer import TrainerConfig

    sizes = []
    for name in ("nnodes", "n_gpus_per_node"):
        size = lookup(raw, f"trainer.{name}")
        size = TrainerConfig.__dataclass_fields__[name].default if not present(size) else size
        sizes.append(size)
    return sizes[0] * sizes[1] if all(isinstance(size, int) for size in sizes) else None


def _share(raw: dict[str, Any], old: str, new: str, value: Any, problems: list[str]) -> None:
    ranks = _ranks(raw)
    if isinstance(value, int) and ranks and value % ranks:
        _take(raw, old)
        problems.append(
            f"{old}: {value} counts samples over all ranks and does not divide by {ranks} ranks"
            f" (trainer.nnodes x trainer.n_gpus_per_node); give {new} instead"
        )
        return
    share = value // ranks if isinstance(value, int) and ranks else value
    _move(raw, old, new, share, problems)


def apply_aliases(raw: dict[str, Any]) -> list[str]:
    """Rewrite other spellings in place, and say so in the log; returns what contradicts itself."""
    problems: list[str] = []
    for old, new in {**RENAMED_KEYS, **GLOBAL_COUNTS}.items():
        value = lookup(raw, old)
        if not present(value):
            continue
        logger.info("config: %s is read as %s", old, new)
        (_share if old in GLOBAL_COUNTS else _move)(raw, old, new, value, problems)
    for key, values in RENAMED_VALUES.items():
        value = lookup(raw, key)
        if isinstance(value, str) and value in values:
            logger.info("config: %s: %s is read as %s", key, value, values[value])
            put(raw, key, values[value])
    return problems
