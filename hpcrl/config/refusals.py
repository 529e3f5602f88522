"""What users of other systems ask for and hpcrl does not have: each by name, with the reason and the nearest offer."""

from __future__ import annotations

from typing import Any

from hpcrl.config.aliases import lookup, present
from hpcrl.config.messages import shown

_ENGINE = "this engine has no rollout backend here yet; rollout.name=hf samples with transformers on any device"

REFUSED_VALUES: dict[str, dict[str, str]] = {
    "actor_rollout_ref.model.backend": {
        "megatron": "Megatron-LM is not a training backend here: models are sharded by FSDP2; use fsdp2",
    },
    "actor_rollout_ref.rollout.name": {"vllm": _ENGINE, "sglang": _ENGINE, "trtllm": _ENGINE},
    "algorithm.adv_estimator": {
        "gae": "it needs a critic, which hpcrl does not train yet; grpo takes its baseline from a group of samples",
        "remax": "the trainer samples no greedy baselines yet; rloo's baseline is the mean of a prompt's other samples",
    },
}
"""Key -> value -> why it is refused and what to take instead."""

REFUSED_KEYS: dict[str, str] = {
    "critic": "hpcrl does not train a critic yet; algorithm.adv_estimator=grpo needs none",
    "trainer.critic_warmup": "hpcrl does not train a critic yet; algorithm.adv_estimator=grpo needs none",
    "actor_rollout_ref.actor.megatron": "Megatron-LM is not a training backend here; see model.backend and fsdp_config",
    "actor_rollout_ref.ref.megatron": "Megatron-LM is not a training backend here; see model.backend and fsdp_config",
    "trainer.default_local_dir": "checkpoints stand in the run folder; run_root says where run folders are made",
}
"""Key or section -> why it is refused and what to take instead."""


ONE_VALUED_KEYS: dict[str, tuple[Any, str]] = {
    "trainer.async_weight_update": (
        False,
        "rollouts always sample with the newest weights, which are handed over between two steps",
    ),
}
"""Key of the documents -> the one value that says what hpcrl does anyway, and why there is no other."""


def refuse(raw: dict[str, Any]) -> list[str]:
    """Take refused keys and values out of the raw config; returns one line for each."""
    problems: list[str] = []
    for key, reason in REFUSED_KEYS.items():
        if present(lookup(raw, key)):
            parent, _, last = key.rpartition(".")
            (lookup(raw, parent) if parent else raw).pop(last)
            problems.append(f"{key}: not supported: {reason}")
    for key, reasons in REFUSED_VALUES.items():
        value = lookup(raw, key)
        if isinstance(value, str) and value in reasons:
            parent, _, last = key.rpartition(".")
            lookup(raw, parent).pop(last)
            problems.append(f"{key}: {value!r} is not supported: {reasons[value]}")
    for key, (value, reason) in ONE_VALUED_KEYS.items():
        given = lookup(raw, key)
        if not present(given):
            continue
        parent, _, last = key.rpartition(".")
        lookup(raw, parent).pop(last)
        if given is not value:
            problems.append(f"{key}: {shown(given)} is not supported, only {shown(value)}: {reason}")
    return problems
