"""SFTTrainer: supervised steps on demonstrations, resumable like RL."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path

import torch

from hpcrl.config import StopRequested
from hpcrl.data import split_files
from hpcrl.data.loader import ResumableLoader
from hpcrl.data.sft import SFTDataset, Tokens
from hpcrl.data.tool_schemas import tool_schemas
from hpcrl.protocol import DataProto
from hpcrl.stage import StageJob
from hpcrl.trainer.checkpoint import CheckpointStore
from hpcrl.trainer.metrics import timed
from hpcrl.trainer.ppo.ray_worker_group import RayWorkerGroup
from hpcrl.trainer.ppo.resource_pool import ResourcePoolManager
from hpcrl.trainer.progress import Progress
from hpcrl.trainer.ray_cluster import resolve_device
from hpcrl.trainer.tracking import Tracking
from hpcrl.utils.run import base_model_path, load_run_tokenizer
from hpcrl.workers.engine.packing import balance
from hpcrl.workers.sft import SFTWorker

logger = logging.getLogger(__name__)

TOKENIZED_ROWS_KEPT = 50_000


class SFTTrainer:
    """Trains a model on conversations; its checkpoints and metrics stand in the stage's folder."""

    def __init__(self, job: StageJob) -> None:
        self.job, self.config = job, job.config
        sft = self.config.sft
        self.tokenizer = load_run_tokenizer(job.folder, self.config)
        files = [Path(file) for file in sft.train_files] or split_files(job.folder, "sft")
        dataset = SFTDataset(
            files,
            self.tokenizer,
            sft.messages_key,
            sft.max_length,
            tool_schemas(self.config),
            template_kwargs=self.config.data.apply_chat_template_kwargs,
            truncation=self.config.data.truncation,
        )
        self.tokens = lru_cache(maxsize=TOKENIZED_ROWS_KEPT)(dataset.__getitem__)
        self.loader = ResumableLoader(_Numbers(len(dataset)), sft.train_batch_size, shuffle=True, seed=self.config.seed)
        self.total_steps = sft.total_training_steps or sft.total_epochs * self.loader.steps_per_epoch
        self.folder = job.folder.stage(job.name)

    def init_workers(self) -> None:
        """Start the workers and load, or make, the model."""
        trainer = self.config.trainer
        manager = ResourcePoolManager(
            {"sft": {"gpu": trainer.nnodes * trainer.n_gpus_per_node}}, device=resolve_device(self.config)
        )
        pool = manager.get_resource_pool("sft")
        self.group = RayWorkerGroup(pool.size, SFTWorker, pool, threads=trainer.cpu_threads_per_rank)
        path = base_model_path(self.job.folder, self.config)
        self.group.execute_all("init_model", self.config, self.tokenizer, path, self.total_steps)
        store = CheckpointStore(self.folder.path / "checkpoints", keep=1)
        self.progress = Progress(self.job, self.group, self.loader, store, self.total_steps)

    def fit(self) -> None:
        """Train to the end; leaves the model in the stage's out/model.

        Raises:
            StopRequested: an orderly end was asked for; all finished steps are saved.
        """
        progress, every = self.progress, self.config.sft.save_freq
        progress.resume(progress.store.newest())
        tracking = Tracking(self.job, self.folder.metrics, first_step=progress.step + 1, total_steps=self.total_steps)
        try:
            while not progress.done:
                self.job.stop.check()
                metrics = self._train_step()
                tracking.log(progress.step, metrics)
                if progress.done or (every > 0 and progress.step % every == 0):
                    progress.save()
        except StopRequested:
            progress.save()
            raise
        finally:
            tracking.close()
        progress.export()

    def _train_step(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        with timed(metrics, "step"):
            rows = [self.tokens(int(number)) for number in next(self.loader).non_tensor_batch["number"]]
            batch = collate_tokens(rows, self.tokenizer.pad_token_id)
            batch.meta_info["num_tokens"] = max(1, int(batch.batch["response_mask"].sum()))
            shares = balance(batch.batch["attention_mask"].sum(dim=1).tolist(), self.group.world_size)
            update = self.group.execute_each("update", [batch[share] for share in shares])[0]
        self.progress.advance(metrics["timing_s/step"])
        self.job.heartbeat("sft", self.progress.step, self.total_steps)
        tokens = int(batch.batch["attention_mask"].sum())
        return metrics | {f"train/{name}": value for name, value in update.items()} | {"train/tokens": tokens}


class _Numbers:
    """Row numbers as a data set: the loader keeps the order, the rows are tokenised when their step comes."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int, /) -> dict[str, int]:
        return {"number": index}


def collate_tokens(rows: list[Tokens], pad_token_id: int) -> DataProto:
    """Conversations as a batch whose prompt is the first token and whose response, masked, is the rest."""
    length = max(len(row["input_ids"]) for row in rows) - 1
    prompts = torch.tensor([[row["input_ids"][0]] for row in rows])
    responses = torch.full((len(rows), length), pad_token_id)
    response_mask = torch.zeros((len(rows), length), dtype=torch.int64)
    attention_mask = torch.zeros((len(rows), length + 1), dtype=torch.int64)
    for i, row in enumerate(rows):
        count = len(row["input_ids"])
        responses[i, : count - 1] = torch.tensor(row["input_ids"][1:])
        response_mask[i, : count - 1] = torch.tensor(row["loss_mask"][1:])
        attention_mask[i, :count] = 1
    return DataProto.from_dict(
        {
            "prompts": prompts,
            "responses": responses,
            "response_mask": response_mask,
            "attention_mask": attention_mask,
        }
    )
