"""RayPPOTrainer: the training loop."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hpcrl.config import Config, StopRequested, UserError, as_config, batch_arithmetic
from hpcrl.data.dataset import PromptDataset
from hpcrl.data.loader import ResumableLoader, sequential_batches
from hpcrl.data.tool_schemas import tool_schemas
from hpcrl.protocol import DataProto
from hpcrl.stage import StageJob, standalone_job
from hpcrl.trainer.checkpoint import Checkpoint, CheckpointStore
from hpcrl.trainer.generation import generate, map_shares, rank_shares, repeat_prompts
from hpcrl.trainer.metrics import batch_metrics, throughput_metrics, timed, validation_metrics
from hpcrl.trainer.ppo.core_algos import get_kl_controller
from hpcrl.trainer.ppo.ray_worker_group import RayWorkerGroup
from hpcrl.trainer.ppo.resource_pool import ResourcePoolManager
from hpcrl.trainer.ppo.reward import load_reward_manager
from hpcrl.trainer.ppo.step import batch_counts, compute_advantages, mini_batches
from hpcrl.trainer.progress import Progress
from hpcrl.trainer.records import sample_rows
from hpcrl.trainer.tracking import Tracking, write_rollouts
from hpcrl.utils.run import initial_model_path, load_run_tokenizer, train_files, val_files
from hpcrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from hpcrl.workers.rollout import SamplingParams

logger = logging.getLogger(__name__)

POOL = "actor_rollout_ref"


class RayPPOTrainer:
    """The central controller: `init_workers()`, then `fit()`.

    Args:
        config: the whole config, or a mapping (a DictConfig too) that validates to it.
        resource_pool_manager: with a pool `actor_rollout_ref`.
        ray_worker_group_cls: how worker groups are made.
        tokenizer: of the model; None: the run's own.
        job: the attempt that this trainer runs in; None: a folder of its own below `run_root`.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any],
        resource_pool_manager: ResourcePoolManager,
        ray_worker_group_cls: type[RayWorkerGroup] = RayWorkerGroup,
        tokenizer: PreTrainedTokenizerBase | None = None,
        job: StageJob | None = None,
    ) -> None:
        self.config = as_config(config)
        self.resource_pool_manager = resource_pool_manager
        self.ray_worker_group_cls = ray_worker_group_cls
        self.job = job or standalone_job(self.config)
        self.tokenizer = tokenizer or load_run_tokenizer(self.job.folder, self.config)
        self.reward_fn = load_reward_manager(self.config, self.tokenizer, poll=self.job.stop.check)
        self.kl_ctrl = get_kl_controller(self.config.algorithm.kl_ctrl)
        self._open_data()
        trainer = self.config.trainer
        self.total_steps = trainer.total_training_steps or trainer.total_epochs * self.loader.steps_per_epoch

    # -- set-up ------------------------------------------------------------------------------------------------------

    def init_workers(self) -> None:
        """Start the workers and load the policy, the rollout replicas and, where needed, the reference model."""
        config, path = self.config, initial_model_path(self.job.folder, self.config)
        logger.info("batches:\n%s", batch_arithmetic(config))
        self.job.heartbeat("init", 0, self.total_steps)
        pool = self.resource_pool_manager.get_resource_pool(POOL)
        _check_ranks(pool.size, config)
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
        store = CheckpointStore(self.job.folder.checkpoints, config.trainer.max_actor_ckpt_to_keep)
        self.progress = Progress(self.job, self.group, self.loader, store, self.total_steps)

    @property
    def use_reference(self) -> bool:
        """Whether a reference model is needed."""
        return self.config.algorithm.use_kl_in_reward or self.config.actor_rollout_ref.actor.use_kl_loss

    def _open_data(self) -> None:
        data, seed = self.config.data, self.config.seed
        tools = tool_schemas(self.config)
        training, validation = train_files(self.job.folder, self.config), val_files(self.job.folder, self.config)
        self.train_dataset = PromptDataset(training, data, self.tokenizer, tools, data.train_max_samples)
        self.val_dataset = None
        if validation:
            self.val_dataset = PromptDataset(validation, data, self.tokenizer, tools, data.val_max_samples)
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
        progress, trainer = self.progress, self.config.trainer
        first = progress.step + 1 if progress.step else 0
        tracking = Tracking(self.job, self.job.folder.metrics, first_step=first, total_steps=self.total_steps)
        try:
            if progress.step == 0 and trainer.val_before_train and self.val_dataset is not None:
                tracking.log(0, self._validate(0))
            while not progress.done:
                self.job.stop.check()
                metrics = self._train_step(progress.step + 1)
                try:
                    if _due(progress.step, trainer.test_freq, progress.done):
                        metrics |= self._validate(progress.step)
                finally:  # a stop in the validation must not lose the step's own numbers
                    tracking.log(progress.step, metrics)
                if _due(progress.step, trainer.save_freq, progress.done):
                    self._save()
        except StopRequested:
            self._save()
            raise
        finally:
            tracking.close()
        progress.export()

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
                batch = batch.union(self._log_probs("compute_log_prob", batch))
            if self.use_reference:
                with timed(metrics, "ref"):
                    batch = batch.union(self._log_probs("compute_ref_log_prob", batch))
            with timed(metrics, "adv"):
                metrics |= self._advantages(batch)
            with timed(metrics, "update_actor"):
                self.job.heartbeat("update", step, self.total_steps)
                metrics |= self._update(batch, step)
            with timed(metrics, "update_weights"):
                self.group.execute_all("update_rollout_weights", step)
        epoch = self.progress.boundary["epoch"]
        self.progress.advance(metrics["timing_s/step"])
        self._record(batch, extra, step)
        metrics |= batch_metrics(batch, self.config.data.max_response_length)
        metrics |= throughput_metrics(batch, metrics, self.group.world_size)
        return metrics | {"training/global_step": step, "training/epoch": epoch}

    def _sample(self, prompts: DataProto, step: int) -> DataProto:
        sampling = SamplingParams.for_training(self.config.actor_rollout_ref.rollout)
        margin = self.job.stop.margin
        return generate(self.group, prompts, seed=self.config.seed, step=step, sampling=sampling, stop_margin=margin)

    def _score(self, batch: DataProto) -> dict[str, list[Any]]:
        result = self.reward_fn(batch, return_dict=True)
        batch.batch["token_level_scores"] = result["reward_tensor"]
        return result["reward_extra_info"]

    def _log_probs(self, method: str, batch: DataProto) -> DataProto:
        return map_shares(self.group, method, batch, self.config.trainer.balance_batch)

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
            shares = rank_shares(mini, self.group.world_size, self.config.trainer.balance_batch)
            updates.append(self.group.execute_each("update_actor", [mini[share] for share in shares])[0])
        return {name: sum(update[name] for update in updates) / len(updates) for name in updates[0]}

    # -- validation, records, checkpoints ----------------------------------------------------------------------------

    def _validate(self, step: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if self.val_dataset is None:
            return metrics
        self.job.heartbeat("validate", step, self.total_steps)
        rollout = self.config.actor_rollout_ref.rollout
        n = rollout.val_kwargs.n
        with timed(metrics, "testing"):
            batch = generate(
                self.group,
                repeat_prompts(next(sequential_batches(self.val_dataset)), n),
                seed=self.config.seed,
                step=-1 - step,
                sampling=SamplingParams.for_validation(rollout),
                max_rows=(self.config.data.val_batch_size or 0) * n,
                stop_margin=self.job.stop.margin,
            )
            scored = self.reward_fn(batch, return_dict=True)
        self.progress.took("testing", metrics["timing_s/testing"])
        scores = scored["reward_tensor"].sum(dim=1).tolist()
        return metrics | validation_metrics(batch, scores, scored["reward_extra_info"].get("acc"))

    def _record(self, batch: DataProto, extra: dict[str, list[Any]], step: int) -> None:
        scores = batch.batch["token_level_scores"].sum(dim=1).tolist()
        write_rollouts(self.job.folder.rollouts / f"step_{step:06d}.parquet", sample_rows(batch, scores, extra))

    def _save(self) -> None:
        self.progress.save(kl_ctrl=self.kl_ctrl.state_dict())

    def _resume(self) -> None:
        state = self.progress.resume(self._checkpoint_to_resume())
        if state is not None:
            self.kl_ctrl.load_state_dict(state["kl_ctrl"])
            self.group.execute_all("update_rollout_weights", self.progress.step)

    def _checkpoint_to_resume(self) -> Checkpoint | None:
        trainer, store = self.config.trainer, self.progress.store
        if trainer.resume_mode == "disable":
            return None
        own = store.newest()
        if own is not None:  # this very run's own progress comes first, whatever it began from
            return own
        if trainer.resume_mode == "resume_path":
            if trainer.resume_from_path is None:
                raise UserError("trainer.resume_mode=resume_path needs trainer.resume_from_path=…/global_step_N")
            return store.open(Path(trainer.resume_from_path))
        return None


def _check_ranks(ranks: int, config: Config) -> None:
    wanted = config.trainer.nnodes * config.trainer.n_gpus_per_node
    if ranks != wanted:
        raise UserError(
            f"the resource pool {POOL!r} has {ranks} ranks, but trainer.nnodes x trainer.n_gpus_per_node = "
            f"{config.trainer.nnodes} x {config.trainer.n_gpus_per_node} = {wanted}: make them equal"
        )


def _due(step: int, freq: int, last: bool) -> bool:
    return last or (freq > 0 and step % freq == 0)
