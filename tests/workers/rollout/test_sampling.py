"""The sampler: the law of its draws, and what the cuts leave."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hpcrl.config.rollout import RolloutConfig, ValKwargsConfig
from hpcrl.workers.rollout.base import SamplingParams
from hpcrl.workers.rollout.sampling import Sampler, inverse_cdf

CPU = torch.device("cpu")


def draw(params: SamplingParams, logits: torch.Tensor, count: int, seed: int = 0) -> torch.Tensor:
    uniforms = torch.from_numpy(np.random.default_rng(seed).random(count))
    sampler = Sampler([params] * count, CPU)
    return sampler.sample(logits.expand(count, -1), uniforms)[0]


def test_frequencies_follow_the_tempered_softmax() -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(1)) * 1.5
    tokens = draw(SamplingParams(temperature=0.8), logits, 40_000)
    expected = torch.softmax(logits / 0.8, dim=0) * 40_000
    chi_square = float(((torch.bincount(tokens, minlength=12) - expected) ** 2 / expected).sum())
    assert chi_square < 31.3  # 99.9 % of the chi-square distribution with 11 degrees of freedom


@pytest.mark.parametrize(
    "params", [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.8, "min_p": 0.05}]
)
def test_cuts_leave_what_transformers_warpers_leave(params: dict[str, float]) -> None:
    logits = torch.randn(30, generator=torch.Generator().manual_seed(2)) * 2
    tokens = draw(SamplingParams(temperature=0.9, **params), logits, 20_000)  # type: ignore[arg-type]
    warped = (logits / 0.9)[None]
    warpers = {"top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "min_p": MinPLogitsWarper}
    for name, warper in warpers.items():
        if name in params:
            warped = warper(params[name])(None, warped)
    probs = torch.softmax(warped[0], dim=0)
    counts = torch.bincount(tokens, minlength=30)
    assert counts[probs == 0].sum() == 0
    kept = probs > 0
    chi_square = float(((counts - probs * 20_000)[kept] ** 2 / (probs * 20_000)[kept]).sum())
    assert chi_square < 2 * int(kept.sum()) + 20


def test_rows_do_not_influence_each_other() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(3))
    uniforms = torch.tensor([0.1, 0.5, 0.9, 0.3], dtype=torch.float64)
    params = [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(top_k=2, temperature=0.5),
        SamplingParams(top_p=0.5),
    ]
    together, together_logp = Sampler(params, CPU).sample(logits, uniforms)
    for i, param in enumerate(params):
        alone, alone_logp = Sampler([param], CPU).sample(logits[i : i + 1], uniforms[i : i + 1])
        assert alone == together[i]
        torch.testing.assert_close(alone_logp[0], together_logp[i])
    assert together[1] == logits[1].argmax()


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20).filter(any), st.floats(0, 1, exclude_max=True))
@settings(max_examples=200, deadline=None)
def test_a_token_without_probability_is_never_drawn(probs: list[float], uniform: float) -> None:
    token = int(inverse_cdf(torch.tensor([probs]), torch.tensor([uniform], dtype=torch.float64)))
    assert probs[token] > 0


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_interval(uniform: float) -> None:
    probs = torch.tensor([[0.0, 0.25, 0.75, 0.0]])
    token = int(inverse_cdf(probs, torch.tensor([uniform], dtype=torch.float64)))
    assert token == (1 if uniform == 0 else 2)


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_p": 0}, {"top_k": 0}, {"min_p": 2}, {"max_tokens": 0}])
def test_impossible_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        SamplingParams(**wrong)  # type: ignore[arg-type]


def test_parameters_of_the_config() -> None:
    rollout = RolloutConfig(temperature=0.7, top_k=5, val_kwargs=ValKwargsConfig(temperature=0.6, top_p=0.9))
    assert SamplingParams.for_training(rollout) == SamplingParams(temperature=0.7, top_k=5)
    assert SamplingParams.for_validation(rollout).greedy
    sampled = RolloutConfig(val_kwargs=ValKwargsConfig(temperature=0.6, top_p=0.9, do_sample=True))
    assert SamplingParams.for_validation(sampled) == SamplingParams(temperature=0.6, top_p=0.9)
