"""Evaluation: the trained model and the one before RL on the test split, by the same procedure."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.config import Config, InfrastructureError, UserError
from hpcrl.data.dataset import PromptDataset
from hpcrl.data.loader import sequential_batches
from hpcrl.data.tool_schemas import tool_schemas
from hpcrl.protocol import DataProto
from hpcrl.stage import StageJob
from hpcrl.trainer.generation import generate, repeat_prompts
from hpcrl.trainer.metrics import pass_at_k
from hpcrl.trainer.ppo.ray_worker_group import RayWorkerGroup
from hpcrl.trainer.ppo.resource_pool import ResourcePoolManager
from hpcrl.trainer.ppo.reward import load_reward_manager
from hpcrl.trainer.ray_cluster import resolve_device
from hpcrl.trainer.records import sample_rows
from hpcrl.trainer.tracking import write_rollouts
from hpcrl.utils.files import write_json
from hpcrl.utils.run import initial_model_path, val_files
from hpcrl.utils.tokenizer import hf_tokenizer
from hpcrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from hpcrl.workers.rollout import SamplingParams

logger = logging.getLogger(__name__)

SAMPLED, GREEDY = "sampled", "greedy"
TRAINED, BEFORE = "trained", "before"


def evaluate(job: StageJob) -> None:
    """Write out/eval.json and out/samples_<model>_<mode>.parquet; what an earlier attempt measured is taken over."""
    config, models = job.config, models_to_evaluate(job)
    for path in models.values():
        if Path(path).is_absolute() and not Path(path).exists():
            raise UserError(f"no model at {path}: the stage that makes it has not finished")
    evaluation = Evaluation(job, next(iter(models.values())))
    result: dict[str, object] = {"rows": len(evaluation.dataset), "n": config.evaluate.n, "models": models}
    for name, path in models.items():
        for mode in (SAMPLED, GREEDY) if config.evaluate.greedy else (SAMPLED,):
            suffix = ("_before" if name == BEFORE else "") + ("_greedy" if mode == GREEDY else "")
            measured = _once(job.out / f"measured_{name}_{mode}.json", partial(evaluation.measure, name, path, mode))
            result |= {f"{key}{suffix}": value for key, value in measured.items()}
            logger.info("accuracy%s %.3f", suffix, measured["accuracy"])
    write_json(job.out / "eval.json", result)


def models_to_evaluate(job: StageJob) -> dict[str, str]:
    """Name -> path: the trained model, and the one before RL where that is another."""
    before = initial_model_path(job.folder, job.config)
    if "train" not in job.config.workflow.stages:
        return {TRAINED: before}
    models = {TRAINED: str(job.folder.stage("train").out / "model")}
    return models | ({BEFORE: before} if job.config.evaluate.before else {})


def _once(path: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if not path.exists():
        write_json(path, measure())
    return json.loads(path.read_text())


class Evaluation:
    """Workers that sample, and the rows that they are asked."""

    def __init__(self, job: StageJob, model_path: str) -> None:
        self.job, self.config = job, job.config
        model = self.config.actor_rollout_ref.model
        self.tokenizer = hf_tokenizer(model.tokenizer_path or model_path, trust_remote_code=model.trust_remote_code)
        self.reward_fn = load_reward_manager(self.config, self.tokenizer, poll=self.job.stop.check)
        settings, data = self.config.evaluate, self.config.data
        files = [Path(file) for file in settings.files] or val_files(job.folder, self.config)
        self.dataset = PromptDataset(files, data, self.tokenizer, tool_schemas(self.config), settings.max_samples)
        self.group = _start_workers(self.config)
        self.group.execute_all("init_rollout", self.config, self.tokenizer, model_path, str(job.attempt.path))
        self.loaded = model_path
        self.version = 0

    def measure(self, name: str, model_path: str, mode: str) -> dict[str, Any]:
        """Sample all rows from a model and score them; samples are written to samples_<name>_<mode>.parquet."""
        self.job.stop.check()
        self.job.heartbeat(f"evaluate {name} {mode}")
        self._load(model_path)
        settings = self.config.evaluate
        n = settings.n if mode == SAMPLED else 1
        batch = generate(
            self.group,
            repeat_prompts(next(sequential_batches(self.dataset)), n),
            seed=self.config.seed,
            step=-1,
            sampling=SamplingParams(temperature=settings.temperature if mode == SAMPLED else 0.0),
            max_rows=(settings.batch_size or 0) * n,
        )
        scored = self.reward_fn(batch, return_dict=True)
        scores, extra = scored["reward_tensor"].sum(dim=1).tolist(), scored["reward_extra_info"]
        correct = [(value or 0.0) >= settings.success_score for value in extra.get("acc", scores)]
        rows = sample_rows(batch, scores, extra) | {"correct": correct}
        write_rollouts(self.job.out / f"samples_{name}_{mode}.parquet", rows)
        return summary(batch, scores, correct, n)

    def _load(self, model_path: str) -> None:
        if model_path != self.loaded:
            self.version += 1
            self.group.execute_all("load_rollout_weights", model_path, self.version)
            self.loaded = model_path


def summary(batch: DataProto, scores: list[float], correct: list[bool], n: int) -> dict[str, Any]:
    """Accuracy, pass@k, mean reward, turns, tool-call success and lengths of the samples, n a prompt side by side."""
    if len(batch) == 0:
        raise InfrastructureError("no samples came back")
    calls = [call for calls in batch.non_tensor_batch["tool_calls"] for call in calls]
    counts = np.array(correct).reshape(-1, n).sum(axis=1)
    ks = [2**i for i in range(n.bit_length()) if 2**i <= n]
    lengths = batch.batch["response_mask"].sum(dim=1).float()
    return {
        "accuracy": float(np.mean(correct)),
        "pass@k": {str(k): float(np.mean([pass_at_k(int(count), n, k) for count in counts])) for k in ks},
        "mean_reward": float(np.mean(scores)),
        "mean_turns": float(np.mean([int(turns) for turns in batch.non_tensor_batch["__num_turns__"]])),
        "tool_calls": len(calls),
        "tool_call_success": 1 - sum(bool(call["error"]) for call in calls) / len(calls) if calls else None,
        "mean_response_tokens": lengths.mean().item(),
        "max_response_tokens": lengths.max().item(),
    }


def _start_workers(config: Config) -> RayWorkerGroup:
    trainer = config.trainer
    manager = ResourcePoolManager(
        {"rollout": {"gpu": trainer.nnodes * trainer.n_gpus_per_node}}, device=resolve_device(config)
    )
    pool = manager.get_resource_pool("rollout")
    return RayWorkerGroup(pool.size, ActorRolloutRefWorker, pool, threads=trainer.cpu_threads_per_rank)
