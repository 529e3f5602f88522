"""RayPPOTrainer: the training loop."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hpcrl.config import Config, StopRequested, UserError, batch_arithmetic, from_dict
from hpcrl.data.dataset import PromptDataset
from hpcrl.data.loader import ResumableLoader, sequential_batches
from hpcrl.data.tool_schemas import tool_schemas
from hpcrl.protocol import DataProto
from hpcrl.stage import StageJob, standalone_job
from hpcrl.trainer.checkpoint import Checkpoint, CheckpointStore
from hpcrl.trainer.generation import generate, map_balanced, repeat_prompts
from hpcrl.trainer.metrics import batch_metrics, throughput_metrics, timed, validation_metrics
from hpcrl.trainer.ppo.core_algos import get_kl_controller
from hpcrl.trainer.ppo.ray_worker_group import RayWorkerGroup
from hpcrl.trainer.ppo.resource_pool import ResourcePoolManager
from hpcrl.trainer.ppo.reward import load_reward_manager
from hpcrl.trainer.ppo.step import batch_counts, compute_advantages, mini_batches
from hpcrl.trainer.records import sample_rows
from hpcrl.trainer.tracking import Tracking, write_rollouts
from hpcrl.utils.files import atomic_folder
from hpcrl.utils.run import initial_model_path, load_run_tokenizer, prompt_files
from hpcrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from hpcrl.workers.engine.packing import balance
from hpcrl.workers.rollout import SamplingParams

logger = logging.getLogger(__name__)

POOL = "actor_rollout_ref"


class RayPPOTrainer:
    """The central controller: `init_workers()`, then `fit()`.

    Args:
        config: the whole config, or a mapping that validates to it.
        resource_pool_manager: with a pool `actor_rollout_ref`.
        ray_worker_group_cls: how worker groups are made.
        tokenizer: of the model; None: the run's own.
        job: the attempt that this trainer runs in; None: a folder of its own below `run_root`.
    """

    def __init__(
        self,
        config: Config | dict[str, Any],
        resource_pool_manager: ResourcePoolManager,
        ray_worker_group_cls: type[RayWorkerGroup] = RayWorkerGroup,
        tokenizer: PreTrainedTokenizerBase | None = None,
        job: StageJob | None = None,
    ) -> None:
        self.config = config if isinstance(config, Config) else from_dict(config)
        self.resource_pool_manager = resource_pool_manager
        self.ray_worker_group_cls = ray_worker_group_cls
        self.job = job or standalone_job(self.config)
        self.tokenizer = tokenizer or load_run_tokenizer(self.job.folder, self.config)
        self.reward_fn = load_reward_manager(self.config, self.tokenizer)
        self.kl_ctrl = get_kl_controller(self.config.algorithm.kl_ctrl)
        self._open_data()
        trainer = self.config.trainer
        folder = self.job.folder.checkpoints
        self.checkpoints = CheckpointStore(folder, trainer.max_actor_ckpt_to_keep)
        self.total_steps = trainer.total_training_steps or trainer.total_epochs * self.loader.steps_per_epoch
        self.step = 0
        self.saved_step: int | None = None
        self.boundary = self.loader.state_dict()
        self.step_seconds = self.save_seconds = 0.0

    # -- set-up ------------------------------------------------------------------------------------------------------

    def init_workers(self) -> None:
        """Start the workers and load the policy, the rollout replicas and, where needed, the reference model."""
        config, path = self.config, initial_model_path(self.job.folder, self.config)
        logger.info("batches:\n%s", batch_arithmetic(config))
        self.job.heartbeat("init", 0, self.total_steps)
        pool = self.resource_pool_manager.get_resource_pool(POOL)
        self.group = self.ray_worker_group_cls(
            num_workers=pool.size,
            worker_cls=ActorRolloutRefWorker,
            resource_pool=pool,
            threads=config.trainer.cpu_threads_per_rank,
        )
        actor = config.actor_rollout_ref.actor
        updates = actor.ppo_epochs * max(1, config.data.train_batch_size // actor.ppo_mini_batch_size)
        self.group.execute_all("init_actor", config, self.tokenizer, path, self.total_steps * updates)
        self.group.execute_all("init_rollout", config, self.tokenizer, path, str(self.job.attempt.path))
        if self.use_reference:
            self.group.execute_all("init_ref", config, path)

    @property
    def use_reference(self) -> bool:
        """Whether a reference model is needed."""
        return self.config.algorithm.use_kl_in_reward or self.config.actor_rollout_ref.actor.use_kl_loss

    def _open_data(self) -> None:
        data, seed = self.config.data, self.config.seed
        files = prompt_files(self.job.folder, self.config)
        tools = tool_schemas(self.config)
        self.train_dataset = PromptDataset(files.train, data, self.tokenizer, tools, data.train_max_samples)
        self.val_dataset = None
        if files.val:
            self.val_dataset = PromptDataset(files.val, data, self.tokenizer, tools, data.val_max_samples)
        self.loader = ResumableLoader(
            self.train_dataset,
            batch_size=data.train_batch_size,
            shuffle=data.shuffle,
            seed=seed if data.seed is None else data.seed,
        )

    # -- the loop ----------------------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train to the end, from the newest checkpoint if there is one; leaves the trained model in train/out/model.

        Raises:
            StopRequested: an orderly end was asked for; all finished steps are saved.
        """
        self._resume()
        trainer, stop = self.config.trainer, self.job.stop
        first = self.step + 1 if self.step else 0
        tracking = Tracking(self.job, self.job.folder.metrics, first_step=first, total_steps=self.total_steps)
        try:
            if self.step == 0 and trainer.val_before_train and self.val_dataset is not None:
                tracking.log(0, self._validate(0))
            while self.step < self.total_steps:
                stop.check()
                metrics = self._train_step(self.step + 1)
                last = self.step == self.total_steps
                if self.val_dataset is not None and _due(self.step, trainer.test_freq, last):
                    with timed(metrics, "testing"):
                        metrics |= self._validate(self.step)
                tracking.log(self.step, metrics)
                if _due(self.step, trainer.save_freq, last):
                    self._save()
        except StopRequested:
            self._save()
            raise
        finally:
            tracking.close()
        self._export()

    def _train_step(self, step: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        with timed(metrics, "step"):
            prompts = repeat_prompts(next(self.loader), self.config.actor_rollout_ref.rollout.n)
            with timed(metrics, "gen"):
                self.job.heartbeat("rollout", step, self.total_steps)
                batch = self._sample(prompts, step)
            with timed(metrics, "reward"):
                extra = self._score(batch)
            with timed(metrics, "old_log_prob"):
                self.job.heartbeat("log_prob", step, self.total_steps)
                batch = batch.union(map_balanced(self.group, "compute_log_prob", batch))
            if self.use_reference:
                with timed(metrics, "ref"):
                    batch = batch.union(map_balanced(self.group, "compute_ref_log_prob", batch))
            with timed(metrics, "adv"):
                metrics |= self._advantages(batch)
            with timed(metrics, "update_actor"):
                self.job.heartbeat("update", step, self.total_steps)
                metrics |= self._update(batch, step)
            with timed(metrics, "update_weights"):
                self.group.execute_all("update_rollout_weights", step)
        self.step, self.boundary = step, self.loader.state_dict()
        self.step_seconds = metrics["timing_s/step"]
        self.job.stop.margin = 1.5 * (self.step_seconds + self.save_seconds)
        self._record(batch, extra, step)
        metrics |= batch_metrics(batch, self.config.data.max_response_length)
        metrics |= throughput_metrics(batch, metrics, self.group.world_size)
        return metrics | {"training/global_step": step, "training/epoch": self.boundary["epoch"]}

    def _sample(self, prompts: DataProto, step: int) -> DataProto:
        sampling = SamplingParams.for_training(self.config.actor_rollout_ref.rollout)
        return generate(self.group, prompts, seed=self.config.seed, step=step, sampling=sampling)

    def _score(self, batch: DataProto) -> dict[str, list[Any]]:
        result = self.reward_fn(batch, return_dict=True)
        batch.batch["token_level_scores"] = result["reward_tensor"]
        return result["reward_extra_info"]

    def _advantages(self, batch: DataProto) -> dict[str, float]:
        metrics = compute_advantages(batch, self.config, self.kl_ctrl)
        mask = batch.batch["response_mask"].bool()
        entropy = batch.batch["entropys"][mask]
        return metrics | {"actor/entropy": entropy.mean().item() if entropy.numel() else 0.0}

    def _update(self, batch: DataProto, step: int) -> dict[str, float]:
        fields = ["prompts", "responses", "attention_mask", "response_mask", "old_log_probs", "advantages"]
        fields += ["ref_log_prob"] if self.use_reference else []
        training = batch.select(fields, [])
        updates: list[dict[str, float]] = []
        for mini in mini_batches(training, self.config, step):
            mini.meta_info = {"counts": batch_counts(mini, self.group.world_size)}
            shares = balance(mini.batch["attention_mask"].sum(dim=1).tolist(), self.group.world_size)
            updates.append(self.group.execute_each("update_actor", [mini[share] for share in shares])[0])
        return {name: sum(update[name] for update in updates) / len(updates) for name in updates[0]}

    # -- validation, records, checkpoints ----------------------------------------------------------------------------

    def _validate(self, step: int) -> dict[str, float]:
        assert self.val_dataset is not None
        self.job.heartbeat("validate", step, self.total_steps)
        kwargs = self.config.actor_rollout_ref.rollout.val_kwargs
        prompts = repeat_prompts(next(sequential_batches(self.val_dataset)), kwargs.n)
        batch = generate(
            self.group,
            prompts,
            seed=self.config.seed,
            step=-1 - step,
            sampling=SamplingParams.for_validation(self.config.actor_rollout_ref.rollout),
            max_rows=(self.config.data.val_batch_size or 0) * kwargs.n,
        )
        result = self.reward_fn(batch, return_dict=True)
        scores = result["reward_tensor"].sum(dim=1).tolist()
        return validation_metrics(batch, scores, result["reward_extra_info"].get("acc"))

    def _record(self, batch: DataProto, extra: dict[str, list[Any]], step: int) -> None:
        scores = batch.batch["token_level_scores"].sum(dim=1).tolist()
        write_rollouts(self.job.folder.rollouts / f"step_{step:06d}.parquet", sample_rows(batch, scores, extra))

    def _save(self) -> None:
        if self.step == 0 or self.saved_step == self.step:
            return
        self.job.heartbeat("save", self.step, self.total_steps)
        state = {"loader": self.boundary, "kl_ctrl": self.kl_ctrl.state_dict(), "world_size": self.group.world_size}
        self.save_seconds = self.checkpoints.save(self.step, state, lambda folder: self._write_actor(folder / "actor"))
        self.saved_step = self.job.last_saved_step = self.step
        logger.info("saved step %d in %.1f s", self.step, self.save_seconds)

    def _write_actor(self, folder: Path) -> None:
        folder.mkdir()
        self.group.execute_all("save_checkpoint", str(folder))

    def _resume(self) -> None:
        checkpoint = self._checkpoint_to_resume()
        if checkpoint is not None:
            self.job.heartbeat("load", checkpoint.step, self.total_steps)
            self.group.execute_all("load_checkpoint", str(checkpoint.path / "actor"))
            self.group.execute_all("update_rollout_weights", checkpoint.step)
            self.loader.load_state_dict(checkpoint.trainer_state["loader"])
            self.kl_ctrl.load_state_dict(checkpoint.trainer_state["kl_ctrl"])
            self.step = self.saved_step = self.job.last_saved_step = checkpoint.step
            self.boundary = self.loader.state_dict()
            logger.info("continuing after step %d of %d", self.step, self.total_steps)
        self.job.first_step = self.step + 1

    def _checkpoint_to_resume(self) -> Checkpoint | None:
        trainer = self.config.trainer
        own = self.checkpoints.newest()
        if own is not None:  # this very run's own progress comes first, whatever it began from
            return own
        if trainer.resume_mode == "resume_path":
            if trainer.resume_from_path is None:
                raise UserError("trainer.resume_mode=resume_path needs trainer.resume_from_path=…/global_step_N")
            return self.checkpoints.open(Path(trainer.resume_from_path))
        return None

    def _export(self) -> None:
        self.job.heartbeat("export", self.step, self.total_steps)
        with atomic_folder(self.job.out / "model") as folder:
            self.group.execute_all("export", str(folder))
        logger.info("the trained model is in %s", self.job.out / "model")


def _due(step: int, freq: int, last: bool) -> bool:
    return last or (freq > 0 and step % freq == 0)
