"""Importing stays cheap: names come lazily, and the login node's half knows nothing of tensors."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import hpcrl
import workflows

HEAVY = ("torch", "ray", "transformers", "polars", "wandb")


def packages(root: object) -> list[str]:
    walked = pkgutil.walk_packages(root.__path__, f"{root.__name__}.")  # type: ignore[attr-defined]
    return [root.__name__] + [module.name for module in walked if module.ispkg]  # type: ignore[attr-defined]


def modules(root: object) -> list[str]:
    return [module.name for module in pkgutil.walk_packages(root.__path__, f"{root.__name__}.")]  # type: ignore[attr-defined]


def heavy_after(names: list[str]) -> str:
    script = f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\n"
    script += f"print([h for h in {HEAVY!r} if h in sys.modules])"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_packages_hand_their_names_on_lazily() -> None:
    light = [name for name in packages(hpcrl) if name != "hpcrl.trainer.ppo.core_algos"]
    assert heavy_after(light) == "[]"


def test_workflows_and_config_import_nothing_heavy() -> None:
    light = [name for name in modules(workflows) if not name.endswith("__main__")]
    config = modules(importlib.import_module("hpcrl.config"))
    assert heavy_after(["hpcrl.config", *config, *light]) == "[]"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("hpcrl", "RayPPOTrainer"),
        ("hpcrl", "DataProto"),
        ("hpcrl.trainer.ppo.core_algos", "agg_loss"),
        ("hpcrl.trainer.ppo.core_algos", "compute_policy_loss"),
        ("hpcrl.trainer.ppo.core_algos", "kl_penalty"),
        ("hpcrl.trainer.ppo.resource_pool", "ResourcePoolManager"),
        ("hpcrl.trainer.ppo.ray_worker_group", "RayWorkerGroup"),
        ("hpcrl.trainer.ppo.reward", "load_reward_manager"),
        ("hpcrl.workers.rollout", "RolloutReplica"),
        ("hpcrl.workers.reward_manager", "NaiveRewardManager"),
        ("hpcrl.workers", "ActorRolloutRefWorker"),
        ("hpcrl.utils.tokenizer", "hf_tokenizer"),
    ],
)
def test_documented_names_are_where_the_documents_say(module: str, name: str) -> None:
    assert callable(getattr(importlib.import_module(module), name))
