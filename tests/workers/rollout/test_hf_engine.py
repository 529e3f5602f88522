"""The hf engine against `generate`, against itself, and its sampling against the law."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from hpcrl.config.data import DataConfig
from hpcrl.config.rollout import RolloutConfig
from hpcrl.workers.rollout.base import SamplingParams, TokenOutput
from hpcrl.workers.rollout.hf import HFReplica
from hpcrl.workers.rollout.hf_model import copy_weights

VOCAB = 128
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": list(range(1, 9)),
}
SLIDING = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
FAMILIES = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "qwen2-sliding": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, **SLIDING)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "mistral-sliding": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=6)),
}


def make_model(family: str = "qwen2", seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    return FAMILIES[family]().float().eval()


def make_replica(model: PreTrainedModel, max_num_seqs: int = 64) -> HFReplica:
    config = RolloutConfig(max_num_seqs=max_num_seqs)
    return HFReplica(config, DataConfig(max_prompt_length=100, max_response_length=200), model)


def run(
    replica: HFReplica, prompts: list[list[int]], params: list[SamplingParams], names: list[str] | None = None
) -> list[TokenOutput]:
    names = names or [f"r{i:03}" for i in range(len(prompts))]

    async def all_of_them() -> list[TokenOutput]:
        replica.begin(names)
        return await asyncio.gather(
            *(replica.generate(p, s, name) for p, s, name in zip(prompts, params, names, strict=True))
        )

    return asyncio.run(all_of_them())


def random_prompts(rng: random.Random, count: int, longest: int = 40) -> list[list[int]]:
    distinct = [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, longest))] for _ in range(count)]
    return [rng.choice(distinct) for _ in range(count)]


def generate_greedy(model: PreTrainedModel, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False)
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_num_seqs", [5, 64])
def test_greedy_equals_generate(family: str, max_num_seqs: int) -> None:
    for seed in range(2):
        rng = random.Random(seed)
        model = make_model(family, seed)
        prompts = random_prompts(rng, 12)
        limits = [rng.randint(1, 40) for _ in prompts]
        params = [SamplingParams(temperature=0, max_tokens=limit) for limit in limits]
        outputs = run(make_replica(model, max_num_seqs), prompts, params)
        assert {o.stop_reason for o in outputs} == {"stop", "length"} or seed
        for prompt, limit, output in zip(prompts, limits, outputs, strict=True):
            assert output.token_ids == generate_greedy(model, prompt, limit)
