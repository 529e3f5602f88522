"""ActorRolloutRefWorker: one rank that trains the policy, samples from it, and keeps the reference model."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from hpcrl.config import Config
from hpcrl.config.seam import AttemptFolder
from hpcrl.protocol import DataProto
from hpcrl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty, with_batch_info
from hpcrl.trainer.ppo.core_algos.aggregate import batch_info
from hpcrl.utils.disk import naming_full_disks
from hpcrl.utils.stop import StopFlag
from hpcrl.workers.base import Worker
from hpcrl.workers.engine.engine import TrainEngine
from hpcrl.workers.engine.fsdp import load_causal_lm
from hpcrl.workers.rollout import SamplingParams, get_rollout_replica_class
from hpcrl.workers.rollout.agent_loop import AgentLoopManager


class ActorRolloutRefWorker(Worker):
    """Policy training, sampling and reference log-probs on one rank.

    The parts are built by their own calls, so that evaluation builds only the rollout.
    """

    def init_rollout(
        self, config: Config, tokenizer: PreTrainedTokenizerBase, model_path: str, attempt_dir: str | None
    ) -> None:
        """Build the rollout replica with the weights of a model folder."""
        self.config, self.tokenizer = config, tokenizer
        self.stop = StopFlag(AttemptFolder(Path(attempt_dir))) if attempt_dir else None
        rollout = config.actor_rollout_ref.rollout
        replica_cls = get_rollout_replica_class(rollout.name)
        self.replica = replica_cls(
            rollout,
            config.data,
            model_path,
            tokenizer=tokenizer,
            device=self.device,
            trust_remote_code=self._model.trust_remote_code,
        )
        self.agent_loops = AgentLoopManager(config, tokenizer, self.replica)

    def init_actor(self, config: Config, tokenizer: PreTrainedTokenizerBase, model_path: str, total_steps: int) -> None:
        """Build the policy with its optimiser; `total_steps` are optimiser steps, for the schedule."""
        self.config, self.tokenizer = config, tokenizer
        actor = config.actor_rollout_ref.actor
        self.actor = TrainEngine(
            self._load(model_path, actor.fsdp_config.model_dtype),
            self._model,
            actor.fsdp_config,
            device=self.device,
            optim=actor.optim,
            grad_clip=actor.grad_clip,
            total_steps=total_steps,
        )

    def init_ref(self, config: Config, model_path: str) -> None:
        """Build the frozen reference model."""
        self.config = config
        fsdp = config.actor_rollout_ref.ref.fsdp_config
        self.ref = TrainEngine(self._load(model_path, fsdp.model_dtype), self._model, fsdp, device=self.device)

    def load_rollout_weights(self, model_path: str, version: int) -> None:
        """Give the rollout replica the weights of another model folder."""
        causal_lm = self._load(model_path, "fp32")
        self.replica.update_weights(version, causal_lm.named_parameters())

    def generate_sequences(
        self, prompts: DataProto, *, seed: int, step: int, sampling: SamplingParams, stop_margin: float = 0.0
    ) -> DataProto | None:
        """Sample a trajectory for each row of this rank's prompts; None where it has none.

        Raises:
            StopRequested: the attempt is asked to end, or its deadline is `stop_margin` seconds away.
        """
        if len(prompts) == 0:
            return None
        check = None
        if self.stop is not None:
            self.stop.margin = stop_margin
            check = self.stop.check
        batch = self.agent_loops.generate_sequences(prompts, seed=seed, step=step, sampling=sampling, stop_check=check)
        if not self.config.actor_rollout_ref.rollout.calculate_log_probs:
            del batch.batch["rollout_log_probs"]
        return batch

    def compute_log_prob(self, data: DataProto) -> DataProto:
        """old_log_probs and entropys, both (bs, R) float32, of the policy as it is."""
        actor = self.config.actor_rollout_ref.actor
        rollout = self.config.actor_rollout_ref.rollout
        log_probs, entropies = self.actor.compute_log_probs(
            data,
            temperature=rollout.temperature,
            size=self._log_prob_size(rollout.log_prob_micro_batch_size_per_gpu),
            max_tokens=actor.ppo_max_token_len_per_gpu,
            with_entropy=True,
        )
        return DataProto.from_dict({"old_log_probs": log_probs, "entropys": entropies})

    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        """ref_log_prob, (bs, R) float32, of the reference model."""
        config = self.config.actor_rollout_ref
        size = config.ref.log_prob_micro_batch_size_per_gpu or config.rollout.log_prob_micro_batch_size_per_gpu
        log_probs, _ = self.ref.compute_log_probs(
            data,
            temperature=config.rollout.temperature,
            size=self._log_prob_size(size),
            max_tokens=config.actor.ppo_max_token_len_per_gpu,
            with_entropy=False,
        )
        return DataProto.from_dict({"ref_log_prob": log_probs})

    def update_actor(self, data: DataProto) -> dict[str, float]:
        """One optimiser step on this rank's share of a mini-batch.

        `data.meta_info["counts"]` holds the counts over the whole mini-batch that losses are normalised by.
        """
        actor, temperature = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout.temperature
        loss = PolicyLoss(self.config, data.meta_info["counts"])
        metrics = self.actor.update(
            data,
            loss,
            temperature=temperature,
            size=None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu,
            max_tokens=actor.ppo_max_token_len_per_gpu,
            with_entropy=actor.entropy_coeff != 0,
        )
        return {name if "/" in name else f"actor/{name}": value for name, value in metrics.items()}

    def update_rollout_weights(self, version: int) -> None:
        """Hand the policy's weights to the rollout replica."""
        self.replica.update_weights(version, self.actor.full_tensors())

    def save_checkpoint(self, folder: str) -> None:
        """Write this rank's part of the policy, its optimiser and schedule."""
        with naming_full_disks():
            self.actor.save(Path(folder))
            torch.save(torch.get_rng_state(), Path(folder) / f"rng_{self.rank}.pt")

    def load_checkpoint(self, folder: str) -> None:
        """Read a checkpoint that any number of ranks wrote."""
        self.actor.load(Path(folder))
        rng = Path(folder) / f"rng_{self.rank}.pt"
        if rng.exists():
            torch.set_rng_state(torch.load(rng))

    def export(self, folder: str) -> None:
        """Write the policy and tokenizer as a Hugging Face folder."""
        with naming_full_disks():
            self.actor.export(Path(folder), self.tokenizer)

    @property
    def _model(self):
        return self.config.actor_rollout_ref.model

    def _load(self, path: str, dtype: str):
        return load_causal_lm(path, dtype=dtype, trust_remote_code=self._model.trust_remote_code)

    def _log_prob_size(self, size: int | None) -> int | None:
        actor = self.config.actor_rollout_ref.actor
        return size or (None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu)


class PolicyLoss:
    """The actor's loss of a micro-batch: policy loss, entropy bonus and KL loss, normalised over the mini-batch."""

    def __init__(self, config: Config, counts: dict[str, int]) -> None:
        self.actor = config.actor_rollout_ref.actor
        self.counted = with_batch_info(self.actor, **counts)
        self.info = batch_info(self.counted)
        self.policy_loss = get_policy_loss_fn(self.actor.policy_loss.loss_mode)

    def __call__(
        self, micro: DataProto, log_probs: torch.Tensor, entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Loss and metrics; metrics are weighted so that they sum over micro-batches to the mini-batch's token mean."""
        actor, device = self.actor, log_probs.device
        mask = micro.batch["response_mask"].to(device)
        share = float(mask.sum()) * self.info["dp_size"] / self.info["batch_num_tokens"]
        loss, measured = self.policy_loss(
            old_log_prob=micro.batch["old_log_probs"].to(device),
            log_prob=log_probs,
            advantages=micro.batch["advantages"].to(device),
            response_mask=mask,
            loss_agg_mode=actor.loss_agg_mode,
            config=self.counted,
        )
        metrics = {"pg_loss": loss.item()} | {name: value * share for name, value in measured.items()}
        if entropy is not None:
            entropy_loss = agg_loss(entropy, mask, actor.loss_agg_mode, **self.info)
            loss = loss - actor.entropy_coeff * entropy_loss
            metrics["entropy_loss"] = entropy_loss.item()
        if actor.use_kl_loss:
            kl = kl_penalty(log_probs, micro.batch["ref_log_prob"].to(device), actor.kl_loss_type)
            kl_loss = agg_loss(kl, mask, actor.loss_agg_mode, **self.info)
            loss = loss + actor.kl_loss_coef * kl_loss
            metrics |= {"kl_loss": kl_loss.item(), "kl_coef": actor.kl_loss_coef * share}
        return loss, metrics
