"""TrainEngine: log-probs, optimiser steps and sharded state of one model, the same for RL and for sft."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from huggingface_hub import save_torch_state_dict
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hpcrl.config.actor import FSDPConfig, OptimConfig
from hpcrl.config.model import ModelConfig
from hpcrl.protocol import DataProto
from hpcrl.workers.engine.fsdp import check_supported, full_tensors, shard
from hpcrl.workers.engine.optim import build_optimizer, build_schedule
from hpcrl.workers.engine.packing import micro_batches, pack, split_to

logger = logging.getLogger(__name__)

LossFunction = Callable[[DataProto, torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, dict[str, float]]]
"""(micro-batch, log_probs (m, R), entropy (m, R) or None) -> (loss, metrics that sum over micro-batches)."""


class TrainEngine:
    """One model sharded over all ranks, with its optimiser when it is trained.

    Every method is collective: all ranks call it together.
    """

    def __init__(
        self,
        causal_lm: PreTrainedModel,
        model: ModelConfig,
        fsdp: FSDPConfig,
        *,
        device: str,
        optim: OptimConfig | None = None,
        grad_clip: float = 1.0,
        total_steps: int = 1,
    ) -> None:
        check_supported(causal_lm.config)
        self.device = device
        self.grad_clip = grad_clip
        self.hf_config = causal_lm.config
        self.generation_config = causal_lm.generation_config
        self.model = shard(causal_lm, model, fsdp, device)
        self.optimizer = None
        if optim is None:
            self.model.requires_grad_(False)
            self.model.eval()
        else:
            self.optimizer = build_optimizer(self.model.parameters(), optim)
            self.schedule = build_schedule(self.optimizer, optim, total_steps)

    @property
    def world_size(self) -> int:
        return dist.get_world_size()

    @torch.no_grad()
    def compute_log_probs(
        self, data: DataProto, *, temperature: float, size: int | None, max_tokens: int | None, with_entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probs, and entropies if asked for, of the response tokens: (bs, R) float32 on the CPU, 0 on padding."""
        self.model.eval()
        shape = data.batch["responses"].shape
        log_probs = torch.zeros(shape)
        entropies = torch.zeros(shape) if with_entropy else None
        for rows in self._parts(data, size, max_tokens):
            micro = data[rows] if rows else _dummy(data)
            log_prob, entropy = self._forward(micro, temperature, with_entropy)
            if rows:
                log_probs[rows] = log_prob.cpu()
                if entropies is not None and entropy is not None:
                    entropies[rows] = entropy.cpu()
        return log_probs, entropies

    def update(
        self,
        data: DataProto,
        loss_fn: LossFunction,
        *,
        temperature: float,
        size: int | None,
        max_tokens: int | None,
        with_entropy: bool = False,
    ) -> dict[str, float]:
        """One optimiser step on this rank's share of a mini-batch.

        The loss must be normalised by counts over the global mini-batch and multiplied by the number of ranks, since
        FSDP averages gradients over ranks.

        Returns:
            The metrics of `loss_fn` averaged over ranks, `grad_norm` (before clipping) and `lr`.
        """
        assert self.optimizer is not None, "this engine was built without an optimiser"
        self.model.train()
        totals: dict[str, float] = {}
        for rows in self._parts(data, size, max_tokens):
            micro = data[rows] if rows else _dummy(data)
            log_probs, entropy = self._forward(micro, temperature, with_entropy)
            loss, metrics = loss_fn(micro, log_probs, entropy)
            loss.backward()
            for name, value in metrics.items():
                totals[name] = totals.get(name, 0.0) + value
        totals = self._mean_over_ranks(totals)
        return totals | self._step()

    def _forward(
        self, micro: DataProto, temperature: float, with_entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        packed = pack(micro)
        log_probs, entropy = self.model(
            packed.input_ids.to(self.device),
            packed.position_ids.to(self.device),
            packed.attention_mask().to(self.device),
            packed.targets.to(self.device),
            temperature,
            with_entropy,
        )
        return packed.scatter(log_probs), None if entropy is None else packed.scatter(entropy)

    def _step(self) -> dict[str, float]:
        assert self.optimizer is not None
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip)
        grad_norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        lr = self.schedule.get_last_lr()[0]
        if torch.isfinite(torch.tensor(grad_norm)):
            self.optimizer.step()
        else:
            logger.warning("gradient norm is %s: this optimiser step is skipped", grad_norm)
        self.optimizer.zero_grad()
        self.schedule.step()
        return {"grad_norm": grad_norm, "lr": lr}

    def _parts(self, data: DataProto, size: int | None, max_tokens: int | None) -> list[list[int]]:
        lengths = data.batch["attention_mask"].sum(dim=1).tolist()
        parts = micro_batches(lengths, size=size, max_tokens=max_tokens)
        count = torch.tensor(len(parts), device=self.device)
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        return split_to(parts, int(count))

    def _mean_over_ranks(self, values: dict[str, float]) -> dict[str, float]:
        names = sorted(values)
        tensor = torch.tensor([values[name] for name in names], dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return dict(zip(names, (tensor / self.world_size).tolist(), strict=True))

    def full_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter, whole, under its Hugging Face name."""
        return full_tensors(self.model)

    def save(self, folder: Path) -> None:
        """Write the sharded model, optimiser and schedule into an empty folder."""
        assert self.optimizer is not None
        model_state, optimizer_state = get_state_dict(self.model, self.optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "schedule": self.schedule.state_dict()}
        dcp.save(state, checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, on any number of ranks."""
        assert self.optimizer is not None
        model_state, optimizer_state = get_state_dict(self.model, self.optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "schedule": self.schedule.state_dict()}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.schedule.load_state_dict(state["schedule"])

    def export(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write a normal Hugging Face model folder; rank 0 writes, all ranks gather."""
        tensors: dict[str, torch.Tensor] = {}
        for name, tensor in self.full_tensors():
            if dist.get_rank() == 0:
                tensors[name] = tensor.cpu().clone()
        if dist.get_rank() == 0:
            _write_model(self, folder, tensors, tokenizer)
        dist.barrier()


def _write_model(
    engine: TrainEngine, folder: Path, tensors: dict[str, torch.Tensor], tokenizer: PreTrainedTokenizerBase
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(engine.hf_config)
    config.architectures = [type(engine.model.causal_lm).__name__]
    config.dtype = next(iter(tensors.values())).dtype
    config.save_pretrained(folder)
    if engine.generation_config is not None:
        engine.generation_config.save_pretrained(folder)
    save_torch_state_dict(tensors, folder)
    tokenizer.save_pretrained(folder)


def _dummy(data: DataProto) -> DataProto:
    """One sequence whose tokens do not count, for a rank that has fewer micro-batches than the others."""
    micro = data[[0]]
    micro.batch = dict(micro.batch) | {"response_mask": torch.zeros_like(micro.batch["response_mask"])}
    return micro
