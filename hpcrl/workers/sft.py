"""SFTWorker: supervised steps on demonstrations, with the same engine as RL."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from hpcrl.config import Config
from hpcrl.protocol import DataProto
from hpcrl.trainer.ppo.core_algos import agg_loss
from hpcrl.utils.disk import naming_full_disks
from hpcrl.workers.base import Worker
from hpcrl.workers.engine.engine import TrainEngine
from hpcrl.workers.engine.fsdp import load_causal_lm


class SFTWorker(Worker):
    """One rank of supervised training."""

    def init_model(
        self, config: Config, tokenizer: PreTrainedTokenizerBase, model_path: str | None, total_steps: int
    ) -> None:
        """Load the model at `model_path`, or make the tiny one of the config when there is none."""
        model = config.actor_rollout_ref.model
        self.config, self.tokenizer = config.sft, tokenizer
        if model_path is None:
            from hpcrl.models.tiny import build_model

            assert model.tiny is not None, "checked by the config"
            causal_lm = build_model(model.tiny, tokenizer, config.seed)
        else:
            causal_lm = load_causal_lm(
                model_path,
                dtype=self.config.fsdp_config.model_dtype,
                trust_remote_code=model.trust_remote_code,
            )
        self.engine = TrainEngine(
            causal_lm,
            model,
            self.config.fsdp_config,
            device=self.device,
            optim=self.config.optim,
            grad_clip=self.config.grad_clip,
            total_steps=total_steps,
        )

    def update(self, data: DataProto) -> dict[str, float]:
        """One optimiser step on this rank's share; `meta_info["num_tokens"]` counts the whole batch's loss tokens."""

        def loss_fn(
            micro: DataProto, log_probs: torch.Tensor, entropy: torch.Tensor | None
        ) -> tuple[torch.Tensor, dict[str, float]]:
            loss = agg_loss(
                -log_probs,
                micro.batch["response_mask"].to(log_probs.device),
                "token-mean",
                dp_size=self.world_size,
                batch_num_tokens=data.meta_info["num_tokens"],
            )
            return loss, {"loss": loss.item()}

        return self.engine.update(
            data, loss_fn, temperature=1.0, size=None, max_tokens=self.config.max_token_len_per_gpu
        )

    def save_checkpoint(self, folder: str) -> None:
        """Write this rank's part of the model, its optimiser and schedule."""
        with naming_full_disks():
            self.engine.save(Path(folder))

    def load_checkpoint(self, folder: str) -> None:
        """Read a checkpoint that any number of ranks wrote."""
        self.engine.load(Path(folder))

    def export(self, folder: str) -> None:
        """Write the model and tokenizer as a Hugging Face folder."""
        with naming_full_disks():
            self.engine.export(Path(folder), self.tokenizer)
