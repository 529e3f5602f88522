"""FSDP2 around a causal language model: loading, sharding, and whole tensors out again."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from hpcrl.config.actor import FSDPConfig
from hpcrl.config.model import ModelConfig
from hpcrl.config.seam import UserError
from hpcrl.workers.engine.log_probs import NextTokenLogProbs

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PREFIX = "causal_lm."


def load_causal_lm(path: str, *, dtype: str, device: str, trust_remote_code: bool = False) -> PreTrainedModel:
    """A causal language model from a folder or hub id.

    Raises:
        UserError: no model that can be loaded stands there.
    """
    flash = device == "cuda" and dtype == "bf16" and importlib.util.find_spec("flash_attn") is not None
    try:
        return AutoModelForCausalLM.from_pretrained(
            path,
            dtype=DTYPES[dtype],
            attn_implementation="flash_attention_2" if flash else "sdpa",
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError) as error:
        raise UserError(f"no model could be loaded from {path!r}: {error}") from error


def shard(causal_lm: PreTrainedModel, model: ModelConfig, fsdp: FSDPConfig, device: str) -> NextTokenLogProbs:
    """Wrap a model for training: each decoder layer and the root are sharded over all ranks."""
    causal_lm.to(device=device, dtype=DTYPES[fsdp.model_dtype])
    if model.enable_gradient_checkpointing:
        causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    root = NextTokenLogProbs(causal_lm)
    mesh = data_parallel_mesh(device)
    precision = MixedPrecisionPolicy(param_dtype=DTYPES[fsdp.dtype], reduce_dtype=torch.float32)
    for layer in decoder_layers(causal_lm):
        fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=fsdp.reshard_after_forward)
    fully_shard(root, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    return root


def data_parallel_mesh(device: str) -> DeviceMesh:
    """All ranks in one data-parallel dimension."""
    return init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("dp",))


def decoder_layers(causal_lm: PreTrainedModel) -> list[nn.Module]:
    """The repeated blocks of a model: the modules of the classes that it says must not be split."""
    names = set(causal_lm._no_split_modules or ())
    return [module for module in causal_lm.modules() if type(module).__name__ in names]


def full_tensors(root: NextTokenLogProbs) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter, whole, under the name that the Hugging Face model gives it. All ranks must iterate together."""
    for name, parameter in root.named_parameters():
        tensor = parameter.detach()
        yield name.removeprefix(PREFIX), tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
