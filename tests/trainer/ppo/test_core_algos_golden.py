"""The recorded numbers of tests/golden/core_algos.json (verl 0.9.1, float32, CPU), values and gradients."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcrl.trainer.ppo import core_algos

CASES = json.loads((Path(__file__).parents[2] / "golden" / "core_algos.json").read_text())["cases"]
DIFFERENTIATED = {"kl_penalty": "logprob", "compute_value_loss": "vpreds"}
COVERED = {
    "agg_loss",
    "kl_penalty",
    "compute_policy_loss",
    "compute_rewards",
    "compute_entropy_loss",
    "compute_value_loss",
    "AdaptiveKLController",
    *(f"policy_loss:{name}" for name in core_algos.POLICY_LOSS_REGISTRY),
    *(f"adv_estimator:{name}" for name in core_algos.ADV_ESTIMATOR_REGISTRY),
}


def decode(value: Any) -> Any:
    if isinstance(value, dict) and "tensor" in value:
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
    if isinstance(value, dict) and "array" in value:
        return np.array(value["array"], dtype=object)
    if isinstance(value, dict):
        return {key: decode(inner) for key, inner in value.items()}
    return [decode(inner) for inner in value] if isinstance(value, list) else value


def function_of(case: dict[str, Any]) -> Any:
    kind, _, name = case["function"].partition(":")
    if kind == "policy_loss":
        return partial(core_algos.get_policy_loss_fn(name), config=case["config"])
    if kind == "adv_estimator":
        function = core_algos.get_adv_estimator_fn(name)
        return function if name == "gae" else partial(function, config=case["config"])
    return getattr(core_algos, kind)


def assert_same(got: Any, want: Any) -> None:
    if isinstance(want, dict):
        assert set(got) == set(want)
        for key in want:
            assert_same(got[key], want[key])
    elif isinstance(want, list):
        assert len(got) == len(want)
        for got_one, want_one in zip(got, want, strict=True):
            assert_same(got_one, want_one)
    else:
        torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want), rtol=1e-5, atol=1e-6, check_dtype=False)


def chosen(*functions: str) -> list[Any]:
    found = [case for case in CASES if case["function"] in functions]
    return [pytest.param(case, id=f"{case['function']}-{case['case']}") for case in found]


@pytest.mark.parametrize("case", chosen(*(COVERED - {"AdaptiveKLController"})))
def test_golden(case: dict[str, Any]) -> None:
    inputs = decode(case["inputs"])
    wrt = inputs[DIFFERENTIATED.get(case["function"], "log_prob")].requires_grad_() if "grad" in case else None
    output = function_of(case)(**inputs)
    assert_same(output, decode(case["output"]))
    if wrt is not None:
        first = output[0] if isinstance(output, tuple) else output
        first.sum().backward()
        assert_same(wrt.grad, decode(case["grad"]))


def test_adaptive_kl_controller() -> None:
    (case,) = [case for case in CASES if case["function"] == "AdaptiveKLController"]
    given = case["inputs"]
    controller = core_algos.AdaptiveKLController(given["init_kl_coef"], given["target_kl"], given["horizon"])
    trace = []
    for current in given["current_kl"]:
        controller.update(current, given["n_steps"])
        trace.append(controller.value)
    assert_same(trace, case["output"])


@pytest.mark.parametrize("function", sorted(COVERED))
def test_every_function_has_golden_cases(function: str) -> None:
    assert any(case["function"] == function for case in CASES)
