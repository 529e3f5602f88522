"""Reward managers and their loading from the config."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from hpcrl.config import from_dict
from hpcrl.config.model import TinyModelConfig
from hpcrl.config.seam import StopRequested, UserError
from hpcrl.models.tiny import build_tokenizer
from hpcrl.protocol import DataProto
from hpcrl.trainer.ppo.reward import check_reward, load_reward_manager
from hpcrl.workers.reward_manager import (
    AbstractRewardManager,
    DAPORewardManager,
    NaiveRewardManager,
    get_reward_manager_cls,
    register,
)
from hpcrl.workers.reward_manager.time_limit import call_within

TOKENIZER = build_tokenizer(TinyModelConfig())
PAD = TOKENIZER.pad_token_id
P, R = 8, 24


def make_batch(
    texts: list[str], truth: str = "46", source: str = "hpcrl/arithmetic", **columns: list[Any]
) -> DataProto:
    prompts, responses, attention = [], [], []
    for text in texts:
        prompt, response = TOKENIZER("1 + 1")["input_ids"], TOKENIZER(text)["input_ids"]
        prompts.append([PAD] * (P - len(prompt)) + prompt)
        responses.append(response + [PAD] * (R - len(response)))
        attention.append([0] * (P - len(prompt)) + [1] * (len(prompt) + len(response)) + [0] * (R - len(response)))
    tensors = {"prompts": prompts, "responses": responses, "attention_mask": attention}
    n = len(texts)
    given = {
        "data_source": [source] * n,
        "reward_model": [{"ground_truth": truth}] * n,
        "extra_info": [{"index": 1}] * n,
    }
    return DataProto.from_dict({k: torch.tensor(v) for k, v in tensors.items()}, given | columns)


def lengths(data: DataProto) -> list[int]:
    return data.batch["attention_mask"][:, P:].sum(dim=1).tolist()


def test_the_score_stands_at_the_last_token() -> None:
    data = make_batch(["#### 46<|im_end|>", "#### 4<|im_end|>", "well #### 46<|im_end|>"])
    rewards = NaiveRewardManager(TOKENIZER, num_examine=1)(data)
    assert isinstance(rewards, torch.Tensor) and rewards.dtype == torch.float32 and rewards.shape == (3, R)
    expected = torch.zeros(3, R)
    for row in (0, 2):
        expected[row, lengths(data)[row] - 1] = 1.0
    assert torch.equal(rewards, expected)


def test_an_empty_response_has_no_token_for_a_score() -> None:
    data = make_batch(["", "#### 46"])
    result = NaiveRewardManager(TOKENIZER, 0, compute_score=lambda **_: 1.0)(data, return_dict=True)
    assert result["reward_tensor"][0].abs().sum() == 0
    assert result["reward_tensor"][1].sum() == 1
    assert result["reward_extra_info"]["score"] == [1.0, 1.0]


def test_what_a_score_function_is_given_and_gives() -> None:
    seen: list[dict[str, Any]] = []

    def score(**arguments: Any) -> dict[str, Any]:
        seen.append(arguments)
        return {"score": 0.5, "acc": len(seen) == 1} | ({"odd": 1} if len(seen) == 2 else {})

    data = make_batch(["<tool_call>x</tool_call><|im_end|>", "b"], source="any", tool_calls=[[{"name": "t"}], []])
    result = NaiveRewardManager(TOKENIZER, 0, score)(data, return_dict=True)
    assert result["reward_extra_info"] == {"score": [0.5, 0.5], "acc": [True, False], "odd": [None, 1]}
    assert seen[0] == {
        "data_source": "any",
        "solution_str": "<tool_call>x</tool_call>",
        "ground_truth": "46",
        "extra_info": {"index": 1, "tool_calls": [{"name": "t"}]},
    }
    assert data.non_tensor_batch["extra_info"][0] == {"index": 1}


def test_scores_that_are_there_already_are_taken() -> None:
    data = make_batch(["a"])
    data.batch["rm_scores"] = torch.ones(1, R)
    manager = NaiveRewardManager(TOKENIZER, 0, compute_score=lambda **_: 1 / 0)
    assert manager(data) is data.batch["rm_scores"]
    assert manager(data, return_dict=True)["reward_tensor"] is data.batch["rm_scores"]


def test_a_failing_score_function_costs_one_row_not_the_run() -> None:
    def score(solution_str: str, **_: Any) -> float:
        return 1 / (solution_str != "b")

    result = NaiveRewardManager(TOKENIZER, 0, score)(make_batch(["a", "b"]), return_dict=True)
    assert result["reward_extra_info"]["score"] == [1.0, 0.0]
    assert result["reward_extra_info"]["score_error"] == [None, "ZeroDivisionError('division by zero')"]
    with pytest.raises(UserError, match="failed on all 2 responses"):
        NaiveRewardManager(TOKENIZER, 0, score)(make_batch(["b", "b"]))


@pytest.mark.parametrize("wrong", [None, "high", {"acc": 1.0}])
def test_what_is_no_score_is_refused(wrong: Any) -> None:
    with pytest.raises(UserError, match="number"):
        NaiveRewardManager(TOKENIZER, 0, lambda **_: wrong)(make_batch(["a"]))


@pytest.mark.parametrize("manager_class", [NaiveRewardManager, DAPORewardManager])
def test_a_score_that_is_no_finite_number_counts_as_an_error(manager_class: Any) -> None:
    def score(solution_str: str, **_: Any) -> float:
        return {"a": float("nan"), "b": float("-inf")}.get(solution_str, 1.0)

    result = manager_class(TOKENIZER, 0, score)(make_batch(["a", "b", "c"]), return_dict=True)
    assert result["reward_tensor"].sum(dim=1).tolist() == [0.0, 0.0, 1.0]
    assert result["reward_extra_info"]["score"] == [0.0, 0.0, 1.0]
    assert result["reward_extra_info"]["score_error"] == ["the score was nan", "the score was -inf", None]
    with pytest.raises(UserError, match="failed on all 1 responses of a batch, first with the score was nan"):
        manager_class(TOKENIZER, 0, score)(make_batch(["a"]))


def test_dapo_has_a_time_limit_too() -> None:
    def score(**_: Any) -> float:
        for _pause in range(1000):
            time.sleep(0.02)
        return 1.0

    manager = DAPORewardManager(TOKENIZER, 0, score, compute_score_timeout=0.1)
    assert manager(make_batch(["a"]), return_dict=True)["reward_extra_info"]["score_error"] == ["timeout"]


@pytest.mark.parametrize("form", [dict, OmegaConf.create])
def test_the_reward_parts_of_a_config_are_enough(form: Any) -> None:
    buffer = {"enable": True, "len": 4, "penalty_factor": 1.0}
    kwargs = {"max_resp_len": R, "overlong_buffer_cfg": buffer}
    parts = form({"reward_model": {"reward_manager": "dapo", "reward_kwargs": kwargs}, "data": {"reward_fn_key": "of"}})
    manager = load_reward_manager(parts, TOKENIZER, num_examine=1)
    assert isinstance(manager, DAPORewardManager) and manager.overlong_buffer.len == 4
    assert (manager.reward_fn_key, manager.num_examine) == ("of", 1)
    with pytest.raises(UserError, match="reward_manager: 'dap' is not allowed; allowed: naive, dapo"):
        load_reward_manager(form({"reward_model": {"reward_manager": "dap"}}), TOKENIZER)


@pytest.mark.parametrize("name", ["naive", "dapo"])
def test_a_stop_ends_the_scoring_between_rows(name: str) -> None:
    scored: list[str] = []

    def poll() -> None:
        if scored:
            raise StopRequested("stop file")

    config = from_dict({"reward_model": {"reward_manager": name}})
    manager = load_reward_manager(config, TOKENIZER, poll=poll)
    manager.compute_score = lambda solution_str, **_: float(bool(scored.append(solution_str)))
    with pytest.raises(StopRequested):
        manager(make_batch(["a", "b", "c"]))
    assert scored == ["a"]


def test_a_hanging_score_function_is_ended_in_any_thread() -> None:
    def score(solution_str: str, **_: Any) -> float:
        while solution_str == "b":
            pass
        return 1.0

    manager = NaiveRewardManager(TOKENIZER, 0, score, compute_score_timeout=0.2)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(manager(make_batch(["a", "b"]), return_dict=True)))
    thread.start()
    thread.join(20)
    assert results[0]["reward_extra_info"] == {"score": [1.0, 0.0], "score_error": [None, "timeout"]}
    assert not [t for t in threading.enumerate() if t.name == "score"]


def test_a_call_within_its_time() -> None:
    assert call_within(5, lambda: 3) == 3
    with pytest.raises(KeyError):
        call_within(5, lambda: {}["x"])
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        call_within(0.1, lambda: [time.sleep(0.05) for _ in range(200)])
    assert time.monotonic() - start < 3


def test_dapo_punishes_length() -> None:
    buffer = {"enable": True, "len": 4, "penalty_factor": 2.0, "log": True}
    manager = DAPORewardManager(
        TOKENIZER, 0, lambda **_: {"score": 1.0, "acc": True}, max_resp_len=10, overlong_buffer_cfg=buffer
    )
    data = make_batch(["1" * n for n in (5, 6, 7, 10, 12)])
    result = manager(data, return_dict=True)
    assert lengths(data) == [5, 6, 7, 10, 12]
    assert result["reward_tensor"].sum(dim=1).tolist() == [1.0, 1.0, 0.5, -1.0, -2.0]
    extra = result["reward_extra_info"]
    assert extra["score"] == [1.0] * 5 and extra["acc"] == [True] * 5
    assert extra["overlong_reward"] == [0.0, 0.0, -0.5, -2.0, -3.0]
    assert extra["overlong"] == [False, False, True, True, True]


def test_dapo_arguments() -> None:
    with pytest.raises(AssertionError, match="max_resp_len must be provided"):
        DAPORewardManager(TOKENIZER, 0, overlong_buffer_cfg={"enable": True, "len": 4})
    with pytest.raises(AssertionError, match=r"must be larger than overlong_buffer\.len"):
        DAPORewardManager(TOKENIZER, 0, max_resp_len=3, overlong_buffer_cfg={"len": 4})
    plain = DAPORewardManager(TOKENIZER, 0)(make_batch(["#### 46"]), return_dict=True)
    assert plain["reward_extra_info"]["acc"] == [1.0]


def test_registry() -> None:
    assert get_reward_manager_cls("naive") is NaiveRewardManager
    with pytest.raises(ValueError, match="Unknown reward manager: nave"):
        get_reward_manager_cls("nave")
    with pytest.raises(ValueError, match="already been registered"):

        @register("naive")
        class Other(NaiveRewardManager):
            pass


CUSTOM = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    return len(solution_str) + bonus

async def slow(data_source, solution_str, ground_truth, extra_info=None):
    return 7

def narrow(solution_str):
    return 1
"""


def custom_config(path: Path | str, name: str = "compute_score", **kwargs: Any) -> Any:
    return from_dict({"custom_reward_function": {"path": str(path), "name": name, "reward_kwargs": kwargs}})


def test_the_users_own_function(tmp_path: Path) -> None:
    path = tmp_path / "my reward.py"
    path.write_text(CUSTOM)
    manager = load_reward_manager(custom_config(path, bonus=0.5), TOKENIZER, num_examine=2)
    assert isinstance(manager, AbstractRewardManager) and manager.num_examine == 2
    assert manager(make_batch(["abc"], source="unheard of")).sum() == 3.5
    assert load_reward_manager(custom_config(path, "slow"), TOKENIZER)(make_batch(["abc"])).sum() == 7
    check_reward(custom_config(path), ["unheard of"])


def test_what_is_wrong_with_the_users_function_is_said(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text(CUSTOM)
    for config, said in (
        (custom_config(tmp_path / "none.py"), "no file"),
        (custom_config(path, "compute_scor"), "did you mean 'compute_score'"),
        (custom_config(path, "narrow"), "cannot be called as"),
        (custom_config(path, bonos=1), "unexpected keyword argument 'bonos'|cannot be called"),
    ):
        with pytest.raises(UserError, match=said):
            check_reward(config, [])
    path.write_text("1 / 0")
    with pytest.raises(UserError, match=r"could not be imported.*division by zero"):
        check_reward(custom_config(path), [])


def test_checks_of_the_config() -> None:
    check_reward(from_dict({}), ["hpcrl/arithmetic", "reasoning_gym/maze"])
    with pytest.raises(UserError, match="no reward rule for data_source 'hpcrl/arithmatic'"):
        check_reward(from_dict({}), ["hpcrl/arithmetic", "hpcrl/arithmatic"])
    config = from_dict({"reward_model": {"reward_manager": "dapo", "reward_kwargs": {"max_resp_len": 5, "speed": 1}}})
    with pytest.raises(UserError, match=r"dapo takes no \['speed'\]"):
        check_reward(config, [])
    unbounded = {"reward_manager": "dapo", "reward_kwargs": {"overlong_buffer_cfg": {"enable": True, "len": 4}}}
    with pytest.raises(UserError, match="max_resp_len must be provided"):
        check_reward(from_dict({"reward_model": unbounded}), [])
    unbounded["reward_kwargs"]["overlong_buffer_cfg"] = {"lenn": 4}  # type: ignore[index]
    with pytest.raises(UserError, match=r"unknown keys \['lenn'\]"):
        check_reward(from_dict({"reward_model": unbounded}), [])
