"""The documented classes on a real Ray: pools, groups, and the trainer built as the documents build it."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import ray
from omegaconf import OmegaConf

from hpcrl import RayPPOTrainer
from hpcrl.config import InfrastructureError, UserError
from hpcrl.config.model import TinyModelConfig
from hpcrl.models.tiny import build_model, build_tokenizer
from hpcrl.trainer.ppo.ray_worker_group import RayWorkerGroup
from hpcrl.trainer.ppo.resource_pool import ResourcePoolManager
from hpcrl.trainer.tracking import read_metrics
from hpcrl.workers.base import Worker

pytestmark = pytest.mark.slow


def echo_class() -> type[Worker]:
    """A worker class that Ray carries by value, since its processes cannot import this file."""

    class Echo(Worker):
        def pid(self) -> int:
            return os.getpid()

        def double(self, number: int) -> int:
            return 2 * number

        def refuse(self) -> None:
            raise UserError("set x to 3")

        def wait_on_rank_zero(self) -> None:
            time.sleep(60 if self.rank == 0 else 0)

    return Echo


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, num_gpus=0, include_dashboard=False, object_store_memory=2**27)
    yield
    ray.shutdown()


@pytest.fixture
def echoes(cluster: None) -> Iterator[RayWorkerGroup]:
    manager = ResourcePoolManager(resource_pool_spec={"echo": {"gpu": 2}})
    pool = manager.get_resource_pool("echo")
    yield RayWorkerGroup(num_workers=2, worker_cls=echo_class(), resource_pool=pool)
    ray.util.remove_placement_group(pool.placement)


def test_a_call_fans_out(echoes: RayWorkerGroup) -> None:
    assert echoes.double(4) == [8, 8]
    assert echoes.execute_each("double", [1, 2]) == [2, 4]
    assert echoes.execute_rank_zero("double", 3) == 6
    with pytest.raises(AttributeError, match="no method 'triple'"):
        echoes.triple(1)


def test_a_workers_message_for_a_person_arrives_as_it_was(echoes: RayWorkerGroup) -> None:
    with pytest.raises(UserError, match=r"^set x to 3$"):
        echoes.refuse()


def test_a_killed_worker_is_infrastructure(echoes: RayWorkerGroup) -> None:
    pid = echoes.pid()[0]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="lost"):
        echoes.wait_on_rank_zero()


def test_a_pool_larger_than_the_cluster_is_refused(cluster: None) -> None:
    with pytest.raises(UserError, match="Total available CPUs 4 is less than total desired CPUs 9"):
        ResourcePoolManager({"actor_rollout_ref": {"gpu": 9}}).create_resource_pool()


@pytest.mark.parametrize("spec", [{"a": {"cpu": 1}}, {"a": {"gpu": 0}}, {"a": {}}])
def test_a_pool_that_is_not_one_is_refused(spec: dict[str, dict[str, int]]) -> None:
    with pytest.raises(UserError, match="resource_pool_spec"):
        ResourcePoolManager(resource_pool_spec=spec)


def prompts(path: Path) -> str:
    rows = [
        {
            "data_source": "hpcrl/arithmetic",
            "prompt": [{"role": "user", "content": f"{i} + 1 = ?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(i + 1)},
            "extra_info": {"split": "train", "index": i},
        }
        for i in range(8)
    ]
    pl.DataFrame(rows).write_parquet(path)
    return str(path)


def test_the_trainer_as_documented(cluster: None, tmp_path: Path) -> None:
    shape = TinyModelConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    tokenizer = build_tokenizer(shape)
    build_model(shape, tokenizer, seed=0).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    config = {
        "run_root": str(tmp_path / "runs"),
        "data": {
            "train_files": prompts(tmp_path / "train.parquet"),
            "val_files": prompts(tmp_path / "val.parquet"),
            "train_batch_size": 4,
            "max_prompt_length": 32,
            "max_response_length": 8,
        },
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": True},
        "actor_rollout_ref": {
            "model": {"path": str(tmp_path / "model"), "backend": "fsdp"},
            "actor": {
                "ppo_mini_batch_size": 2,
                "ppo_micro_batch_size_per_gpu": 1,
                "use_kl_loss": True,
                "kl_loss_type": "low_var",
                "fsdp_config": {"dtype": "fp32"},
            },
            "rollout": {"name": "hf", "n": 2},
        },
        "trainer": {"total_epochs": 1, "n_gpus_per_node": 2, "nnodes": 1, "save_freq": 1, "device": "cpu"},
    }
    resource_manager = ResourcePoolManager(resource_pool_spec={"actor_rollout_ref": {"gpu": 2}})
    trainer = RayPPOTrainer(
        config=OmegaConf.create(config),
        resource_pool_manager=resource_manager,
        ray_worker_group_cls=RayWorkerGroup,
    )
    trainer.init_workers()
    trainer.fit()
    folder = trainer.job.folder
    assert [line["step"] for line in read_metrics(folder.metrics)] == [0, 1, 2]
    assert (folder.checkpoints / "latest_checkpointed_iteration.txt").read_text() == "2"
    state = json.loads((folder.checkpoints / "global_step_2" / "trainer.json").read_text())
    assert state["loader"]["epoch"] == 1 and state["world_size"] == 2
    assert (folder.stage("train").out / "model" / "model.safetensors").exists()
