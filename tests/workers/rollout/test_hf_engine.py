"""The hf engine against `generate`, against itself, and its sampling against the law."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from hpcrl.config.data import DataConfig
from hpcrl.config.rollout import RolloutConfig
from hpcrl.config.seam import UserError
from hpcrl.workers.rollout.base import SamplingParams, TokenOutput
from hpcrl.workers.rollout.hf import HFReplica
from hpcrl.workers.rollout.hf_model import copy_weights, end_token_ids, load_model

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
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SHAPE, head_dim=16, sliding_window=6, attn_implementation="eager")
    ),
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
def test_greedy_equals_generate(family: str) -> None:
    for seed, max_num_seqs in enumerate((3, 64)):
        rng = random.Random(seed)
        model = make_model(family, seed)
        prompts = random_prompts(rng, 9)
        limits = [rng.randint(1, 24) for _ in prompts]
        params = [SamplingParams(temperature=0, max_tokens=limit) for limit in limits]
        outputs = run(make_replica(model, max_num_seqs), prompts, params)
        for prompt, limit, output in zip(prompts, limits, outputs, strict=True):
            assert output.token_ids == generate_greedy(model, prompt, limit)


@pytest.mark.parametrize("family", ["qwen2", "qwen2-sliding", "llama"])
def test_continued_turns_equal_fresh_ones(family: str) -> None:
    """Keys and values kept between turns change nothing, whatever the lengths of turns and answers."""
    rng = random.Random(3)
    model = make_model(family)
    replica = make_replica(model, max_num_seqs=4)
    names = [f"t{i}" for i in range(7)]
    histories = random_prompts(rng, 7, longest=12)

    async def trajectory(i: int, spread: list[list[int]]) -> None:
        for turn in range(3):
            output = await replica.generate(histories[i], SamplingParams(temperature=0, max_tokens=9), names[i])
            expected = generate_greedy(model, histories[i], 9)
            assert output.token_ids == expected, (i, turn)
            if turn == i % 3:
                break
            histories[i] = histories[i] + output.token_ids + spread[i]
        replica.leave(names[i])

    async def all_of_them() -> None:
        replica.begin(names)
        answers = [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 20))] for _ in names]
        await asyncio.gather(*(trajectory(i, answers) for i in range(7)))

    asyncio.run(all_of_them())
    assert replica.health()["kept_tokens"] == 0


def test_kept_keys_and_values_are_used() -> None:
    """A continued turn computes its new tokens only, not the whole prompt."""
    replica = make_replica(make_model())
    widths: list[int] = []
    forward = replica._engine._forward
    replica._engine._forward = lambda ids, *rest: (widths.append(ids.shape[1]), forward(ids, *rest))[1]  # type: ignore

    async def two_turns() -> None:
        replica.begin(["a"])
        params = SamplingParams(temperature=0, max_tokens=4, stop_token_ids=tuple(range(VOCAB)))
        prompt = list(range(10, 40))
        first = await replica.generate(prompt, params, "a")
        assert replica.health()["kept_tokens"] == 30
        await replica.generate(prompt + first.token_ids + [50, 51], params, "a")
        changed = [99, *prompt[1:]]
        await replica.generate(changed + first.token_ids + [50, 51], params, "a")

    asyncio.run(two_turns())
    assert widths == [30, 3, 33]


def test_equal_prompts_are_prefilled_once() -> None:
    replica = make_replica(make_model())
    shapes: list[tuple[int, ...]] = []
    forward = replica._engine._forward
    replica._engine._forward = lambda ids, *rest: (shapes.append(tuple(ids.shape)), forward(ids, *rest))[1]  # type: ignore
    run(replica, [[10, 11, 12]] * 4 + [[13]], [SamplingParams(max_tokens=1)] * 5)
    assert shapes == [(2, 3)]


def test_log_probs_are_those_of_a_plain_forward_pass() -> None:
    model = make_model()
    prompts = random_prompts(random.Random(1), 8)
    temperatures = [0.7, 1.0, 1.6, 0.0] * 2
    params = [
        SamplingParams(temperature=t, top_p=0.9, top_k=20, min_p=0.02, max_tokens=20, seed=i)
        for i, t in enumerate(temperatures)
    ]
    outputs = run(make_replica(model), prompts, params)
    for prompt, temperature, output in zip(prompts, temperatures, outputs, strict=True):
        ids = torch.tensor([prompt + output.token_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        expected = expected.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(output.log_probs), expected, atol=1e-4, rtol=0)


def test_bits_depend_on_the_trajectories_alone() -> None:
    """Neither the order in which requests arrive nor how long they are awaited changes a bit."""
    rng = random.Random(5)
    prompts = random_prompts(rng, 9)
    names = [f"r{i}" for i in range(9)]

    def rollout(order: list[int], delays: list[float]) -> dict[str, list[TokenOutput]]:
        replica = make_replica(make_model(), max_num_seqs=4)
        found: dict[str, list[TokenOutput]] = {}

        async def one(i: int) -> None:
            first = await replica.generate(prompts[i], SamplingParams(max_tokens=15, seed=i), names[i])
            found[names[i]] = [first]
            if i % 2:
                await asyncio.sleep(delays[i])
                second = SamplingParams(max_tokens=15, seed=100 + i)
                output = await replica.generate(prompts[i] + first.token_ids + [7], second, names[i])
                found[names[i]].append(output)
            replica.leave(names[i])

        async def everyone() -> None:
            replica.begin(names)
            await asyncio.gather(*(one(i) for i in order))

        asyncio.run(everyone())
        return found

    plain = rollout(list(range(9)), [0.0] * 9)
    shuffled = rollout([8, 3, 1, 0, 2, 7, 6, 5, 4], [0.03 * (9 - i) for i in range(9)])
    assert plain == shuffled


def test_ends_by_eos_stop_token_and_length() -> None:
    replica = make_replica(make_model())
    everything = tuple(range(VOCAB))
    outputs = run(
        replica,
        [[20]] * 3,
        [
            SamplingParams(max_tokens=30, stop_token_ids=everything),
            SamplingParams(max_tokens=30, ignore_eos=True),
            SamplingParams(max_tokens=1, ignore_eos=True),
        ],
    )
    assert [o.stop_reason for o in outputs] == ["stop", "length", "length"]
    assert [len(o.token_ids) for o in outputs] == [1, 30, 1]


def test_new_weights_are_taken_and_named() -> None:
    replica, other = make_replica(make_model(seed=0)), make_model(seed=1)
    params = [SamplingParams(temperature=0, max_tokens=10)]
    before = run(replica, [[30, 31]], params)[0]
    replica.update_weights(7, other.named_parameters())
    after = run(replica, [[30, 31]], params)[0]
    assert (before.weight_version, after.weight_version) == (0, 7)
    assert after.token_ids == generate_greedy(other, [30, 31], 10) != before.token_ids


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_weights_that_do_not_fit_are_refused(family: str) -> None:
    model, other = make_model(family), make_model(family, seed=1)
    copy_weights(model, other.state_dict().items())
    named = dict(other.named_parameters())
    with pytest.raises(ValueError, match=r"missing \['model.norm.weight'\]"):
        copy_weights(model, {k: v for k, v in named.items() if k != "model.norm.weight"}.items())
    with pytest.raises(ValueError, match=r"unexpected \['model.nose.weight'\]"):
        copy_weights(model, {**named, "model.nose.weight": torch.zeros(1)}.items())
    with pytest.raises(ValueError, match="shape"):
        copy_weights(model, {**named, "model.norm.weight": torch.zeros(1)}.items())


def test_a_stop_reaches_every_waiting_request() -> None:
    replica, polled = make_replica(make_model()), []

    def poll() -> None:
        polled.append(1)
        if len(polled) > 5:
            raise RuntimeError("stop now")

    async def everyone() -> list[TokenOutput | BaseException]:
        replica.begin(["a", "b"], poll)
        params = SamplingParams(max_tokens=50, ignore_eos=True)
        return await asyncio.gather(*(replica.generate([9], params, n) for n in "ab"), return_exceptions=True)

    assert [str(result) for result in asyncio.run(everyone())] == ["stop now", "stop now"]


def test_abort_sleep_and_stop() -> None:
    replica = make_replica(make_model())

    async def aborted() -> TokenOutput:
        replica.begin(["a", "b"])
        waiting = asyncio.create_task(replica.generate([9], SamplingParams(), "a"))
        await asyncio.sleep(0)
        assert replica.health()["waiting"] == 1
        replica.abort("a")
        return await waiting

    assert asyncio.run(aborted()).stop_reason == "abort"
    replica.sleep()
    with pytest.raises(RuntimeError, match="asleep"):
        run(replica, [[9]], [SamplingParams()])
    replica.wake_up()
    assert run(replica, [[9]], [SamplingParams(max_tokens=2, ignore_eos=True)])[0].stop_reason == "length"
    replica.stop()
    assert not replica.health()["alive"]


def test_prompts_that_cannot_be_continued_are_refused() -> None:
    replica = make_replica(make_model())
    for prompt in ([], [9] * 300):
        with pytest.raises(ValueError, match="tokens"):
            run(replica, [prompt], [SamplingParams()])


def test_a_model_folder_is_loaded(tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    config, data = RolloutConfig(dtype="bf16"), DataConfig(max_prompt_length=50, max_response_length=50)
    replica = HFReplica(config, data, str(tmp_path / "model"))
    assert replica.model.dtype == torch.bfloat16
    replica.update_weights(1, model.named_parameters())
    output = run(replica, [[9, 10]], [SamplingParams(max_tokens=5, ignore_eos=True)])[0]
    assert len(output.token_ids) == 5 and output.weight_version == 1
    assert end_token_ids(replica.model, None) == set(range(1, 9))
    with pytest.raises(UserError, match="could not load a model"):
        load_model(str(tmp_path), "fp32", "cpu")
