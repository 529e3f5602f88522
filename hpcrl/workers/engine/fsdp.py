"""FSDP2 around a causal language model: loading, sharding, and whole tensors out again."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from hpcrl.config.actor import FSDPConfig
from hpcrl.config.model import ModelConfig
from hpcrl.config.seam import UserError
from hpcrl.workers.engine.log_probs import NextTokenLogProbs

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PREFIX = "causal_lm."


def load_causal_lm(path: str, *, dtype: str, trust_remote_code: bool = False) -> PreTrainedModel:
    """A causal language model from a folder or hub id.

    Raises:
        UserError: no model that can be loaded stands there.
    """
    try:
        return AutoModelForCausalLM.from_pretrained(
            path, dtype=DTYPES[dtype], attn_implementation="sdpa", trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise UserError(f"no model could be loaded from {path!r}: {error}") from error


def check_supported(config: PretrainedConfig) -> None:
    """The engine computes the vocabulary head and the attention mask itself: refuse what it would compute otherwise.

    Raises:
        UserError: the model scales its logits, or attends through a sliding window.
    """
    for name in ("logits_scaling", "logit_scale", "lm_head_multiplier"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise UserError(
                f"models of type {config.model_type!r} scale their logits ({name}), which is not supported yet"
            )
    layers = getattr(config, "layer_types", None) or ()
    if "sliding_attention" in layers or "chunked_attention" in layers:
        raise UserError(
            f"this {config.model_type!r} model attends through a sliding window, which training does not support yet: "
            "choose one with full attention in every layer"
        )


def shard(causal_lm: PreTrainedModel, model: ModelConfig, fsdp: FSDPConfig, device: str) -> NextTokenLogProbs:
    """Wrap a model for training: each decoder layer and the root are sharded over all ranks."""
    causal_lm.to(device=device, dtype=DTYPES[fsdp.model_dtype])
    if model.enable_gradient_checkpointing:
        _recompute_activations(causal_lm)
    root = NextTokenLogProbs(causal_lm)
    mesh = data_parallel_mesh(device)
    precision = MixedPrecisionPolicy(param_dtype=DTYPES[fsdp.dtype], reduce_dtype=torch.float32)
    for layer in decoder_layers(causal_lm):
        fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=fsdp.reshard_after_forward)
    fully_shard(root, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    return root


def _recompute_activations(causal_lm: PreTrainedModel) -> None:
    # transformers renamed the method within its fifth major version.
    enable = getattr(causal_lm, "activation_checkpointing_enable", None) or causal_lm.gradient_checkpointing_enable
    enable({"use_reentrant": False})


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
