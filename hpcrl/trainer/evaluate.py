"""Evaluation: the trained model and the one before RL on the test split, by the same procedure."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from hpcrl.config import Config, InfrastructureError, UserError
from hpcrl.data import split_files
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
from hpcrl.utils.run import initial_model_path
from hpcrl.utils.tokenizer import hf_tokenizer
from hpcrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from hpcrl.workers.rollout import SamplingParams

logger = logging.getLogger(__name__)

SAMPLED, GREEDY = "sampled", "greedy"


def evaluate(job: StageJob) -> None:
    """Write out/eval.json and out/samples_<model>_<mode>.parquet."""
    config = job.config
    trained = str(job.folder.stage("train").out / "model") if "train" in config.workflow.stages else None
    before = initial_model_path(job.folder, config)
    models = {"": trained or before}
    if config.evaluate.before and trained is not None:
        models["_before"] = before
    evaluation = Evaluation(job, models[""])
    result: dict[str, object] = {"rows": len(evaluation.dataset), "n": config.evaluate.n, "models": models}
    for suffix, path in models.items():
        evaluation.load(path)
        for mode in (SAMPLED, GREEDY) if config.evaluate.greedy else (SAMPLED,):
            measured = evaluation.measure(mode, f"{'before' if suffix else 'trained'}_{mode}")
            mode_suffix = suffix + ("_greedy" if mode == GREEDY else "")
            result |= {f"{name}{mode_suffix}": value for name, value in measured.items()}
            logger.info("accuracy%s %.3f", mode_suffix, measured["accuracy"])
    write_json(job.out / "eval.json", result)


class Evaluation:
    """Workers that sample, and the rows that they are asked."""

    def __init__(self, job: StageJob, model_path: str) -> None:
        self.job, self.config = job, job.config
        self.tokenizer = hf_tokenizer(model_path)
        self.reward_fn = load_reward_manager(self.config, self.tokenizer)
        settings, data = self.config.evaluate, self.config.data
        files = [Path(file) for file in settings.files] or split_files(job.folder, "test")
        self.dataset = PromptDataset(files, data, self.tokenizer, tool_schemas(self.config), settings.max_samples)
        self.group = _start_workers(self.config)
        self.group.execute_all("init_rollout", self.config, self.tokenizer, model_path, str(job.attempt.path))
        self.loaded = model_path
        self.version = 0

    def load(self, model_path: str) -> None:
        """Sample from another model from now on."""
        if not Path(model_path).exists() and Path(model_path).is_absolute():
            raise UserError(f"no model at {model_path}: the stage that makes it has not finished")
        if model_path != self.loaded:
            self.version += 1
            self.group.execute_all("load_rollout_weights", model_path, self.version)
            self.loaded = model_path

    def measure(self, mode: str, name: str) -> dict[str, object]:
        """Sample all rows and score them; samples are written to samples_<name>.parquet."""
        self.job.stop.check()
        self.job.heartbeat(f"evaluate {name}")
        settings = self.config.evaluate
        sampling = SamplingParams(temperature=settings.temperature if mode == SAMPLED else 0.0)
        n = settings.n if mode == SAMPLED else 1
        batch = generate(
            self.group,
            repeat_prompts(next(sequential_batches(self.dataset)), n),
            seed=self.config.seed,
            step=-1,
            sampling=sampling,
            max_rows=(settings.batch_size or 0) * n,
        )
        result = self.reward_fn(batch, return_dict=True)
        scores = result["reward_tensor"].sum(dim=1).tolist()
        extra = result["reward_extra_info"]
        correct = (
            [float(acc) >= 1.0 for acc in extra["acc"]]
            if "acc" in extra
            else [score >= settings.success_score for score in scores]
        )
        write_rollouts(
            self.job.out / f"samples_{name}.parquet", sample_rows(batch, scores, extra) | {"correct": correct}
        )
        return summary(batch, scores, correct, n)


def summary(batch: DataProto, scores: list[float], correct: list[bool], n: int) -> dict[str, object]:
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
