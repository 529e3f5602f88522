"""What the hf engine must know of a transformers model: loading, end tokens, attention masks, new weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from hpcrl.config.seam import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def load_model(path: str, dtype: str, device: str, trust_remote_code: bool = False) -> PreTrainedModel:
    """The causal language model of a folder or hub id, for inference alone."""
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        # SDPA cannot cap attention scores, as Gemma 2 does
        attention = "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=DTYPES[dtype], attn_implementation=attention, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the rollout engine could not load a model from {path!r}: {error}") from error
    return model.to(device)


def end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    """Tokens that end a turn: the tokenizer's, the model's and its generation config's."""
    found: set[int] = set()
    for holder in (tokenizer, model.config, model.generation_config):
        ids = getattr(holder, "eos_token_id", None)
        found |= {ids} if isinstance(ids, int) else set(ids or ())
    return frozenset(found)


class MaskMaker:
    """Attention masks for rows that stand at their own positions, in the form that the model takes."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        layer_types: Sequence[str] = getattr(config, "layer_types", None) or ()
        self._window: int | None = getattr(config, "sliding_window", None)
        self._by_layer_type = "sliding_attention" in layer_types
        if layer_types and not self._by_layer_type:
            self._window = None
        self._additive = config._attn_implementation == "eager"
        self._dtype = model.dtype

    def __call__(self, positions: torch.Tensor, width: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """Each token sees the columns up to its own position, in a sliding window layer only the last ones.

        Args:
            positions: (bs, S) int64; negative: padding, which sees column 0 alone, so that nothing becomes NaN.
            width: columns.

        Returns:
            (bs, 1, S, width), bool or additive; by layer type where the model has several.
        """
        columns = torch.arange(width, device=positions.device)
        distance = positions.clamp(min=0)[:, None, :, None] - columns
        full = distance >= 0
        if self._window is None:
            return self._form(full)
        sliding = self._form(full & (distance < self._window))
        return {"full_attention": self._form(full), "sliding_attention": sliding} if self._by_layer_type else sliding

    def _form(self, allowed: torch.Tensor) -> torch.Tensor:
        if not self._additive:
            return allowed
        zeros = torch.zeros(allowed.shape, dtype=self._dtype, device=allowed.device)
        return zeros.masked_fill_(~allowed, torch.finfo(self._dtype).min)


@torch.no_grad()
def copy_weights(model: PreTrainedModel, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy named tensors into the model's parameters and persistent buffers.

    All parameters must be given, and nothing that the model has not; of tied parameters one is enough.

    Raises:
        ValueError: names or shapes differ; the model is then partly overwritten.
    """
    own = model.state_dict(keep_vars=True)
    unexpected: list[str] = []
    given: set[int] = set()
    for name, tensor in tensors:
        if name not in own:
            unexpected.append(name)
            continue
        if own[name].shape != tensor.shape:
            raise ValueError(f"weight {name}: shape {tuple(tensor.shape)} given, {tuple(own[name].shape)} needed")
        own[name].data.copy_(tensor)
        given.add(own[name].data_ptr())
    missing = [name for name, parameter in model.named_parameters() if parameter.data_ptr() not in given]
    if missing or unexpected:
        raise ValueError(f"weights do not fit the engine's model: missing {missing[:8]}, unexpected {unexpected[:8]}")
