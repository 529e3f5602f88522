"""Agent loops against a replica that says what the test tells it to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.config import Config, from_dict
from hpcrl.config.model import TinyModelConfig
from hpcrl.config.seam import StopRequested, UserError
from hpcrl.models.tiny import build_model, build_tokenizer
from hpcrl.protocol import DataProto
from hpcrl.tools import BaseTool, ToolResponse, ToolSchema
from hpcrl.utils.seed import turn_key
from hpcrl.workers.rollout import AgentLoopManager, SamplingParams, TokenOutput
from hpcrl.workers.rollout.agent_loop import AgentLoopBase, AgentLoopOutput, register, rollout_metrics
from hpcrl.workers.rollout.base import RolloutReplica
from hpcrl.workers.rollout.hf import HFReplica

TINY = TinyModelConfig(hidden_size=32, intermediate_size=64)
TOKENIZER = build_tokenizer(TINY)
END = TOKENIZER.eos_token_id
PROMPT, RESPONSE = 48, 160


def call(expression: str, name: str = "calculator") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'


class ScriptedReplica(RolloutReplica):
    """Answers each trajectory's turns from a script; records what it was asked."""

    def __init__(self, script: Callable[[str, int], str]) -> None:
        self.script = script
        self.asked: dict[str, list[tuple[list[int], SamplingParams]]] = {}
        self.left: list[str] = []

    def begin(self, request_ids: Iterable[str], poll: Callable[[], None] | None = None) -> None:
        self.order = list(request_ids)

    def leave(self, request_id: str) -> None:
        self.left.append(request_id)

    async def generate(self, prompt_ids: list[int], sampling_params: SamplingParams, request_id: str) -> TokenOutput:
        turns = self.asked.setdefault(request_id, [])
        turns.append((prompt_ids, sampling_params))
        ids = TOKENIZER(self.script(request_id, len(turns) - 1), add_special_tokens=False)["input_ids"] + [END]
        cut = ids[: sampling_params.max_tokens]
        reason = "stop" if cut[-1] == END else "length"
        return TokenOutput(cut, [-0.5] * len(cut), reason, weight_version=3)  # type: ignore[arg-type]

    def update_weights(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None: ...
    def sleep(self) -> None: ...
    def wake_up(self) -> None: ...
    def abort(self, request_id: str | None = None) -> None: ...
    def stop(self) -> None: ...

    def health(self) -> dict[str, Any]:
        return {}


def make_config(data: dict[str, Any] | None = None, **multi_turn: Any) -> Config:
    turns = {"enable": True, "tool_config_path": "configs/tools/calculator.yaml", **multi_turn}
    data = {"max_prompt_length": PROMPT, "max_response_length": RESPONSE, **(data or {})}
    return from_dict({"data": data, "actor_rollout_ref": {"rollout": {"multi_turn": turns}}})


def make_prompts(rows: int = 1, **columns: list[Any]) -> DataProto:
    given_columns: dict[str, list[Any]] = {
        "raw_prompt": [[{"role": "user", "content": f"{i} + 34 = ?"}] for i in range(rows)],
        "uid": [f"p{i}" for i in range(rows)],
        "sample": [0] * rows,
    }
    return DataProto.from_dict(non_tensors=given_columns | columns)


def roll(
    script: Callable[[str, int], str], config: Config | None = None, prompts: DataProto | None = None, **tools: BaseTool
) -> tuple[DataProto, ScriptedReplica]:
    replica = ScriptedReplica(script)
    manager = AgentLoopManager(config or make_config(), TOKENIZER, replica)
    manager.tools.update(tools)
    prompts = prompts or make_prompts()
    return manager.generate_sequences(prompts, seed=1, step=2, sampling=SamplingParams()), replica


def turns_of(*texts: str) -> Callable[[str, int], str]:
    return lambda _, turn: texts[turn]


def sampled_text(data: DataProto, row: int = 0) -> str:
    batch = data.batch
    return TOKENIZER.decode(batch["responses"][row][batch["response_mask"][row].bool()])


def test_a_tool_call_and_its_answer() -> None:
    data, replica = roll(turns_of(call("12+34"), "#### 46"))
    batch, columns = data.batch, data.non_tensor_batch
    length = int(batch["attention_mask"][0, PROMPT:].sum())
    text = TOKENIZER.decode(batch["responses"][0][:length])
    assert text == (
        f"{call('12+34')}<|im_end|>\n<|im_start|>tool\n46<|im_end|>\n<|im_start|>assistant\n#### 46<|im_end|>"
    )
    assert sampled_text(data) == f"{call('12+34')}<|im_end|>#### 46<|im_end|>"
    assert [m["role"] for m in columns["messages"][0]] == ["user", "assistant", "tool", "assistant"]
    assert columns["messages"][0][2]["content"] == "46"
    (record,) = columns["tool_calls"][0]
    assert record["name"] == "calculator" and record["arguments"] == {"expression": "12+34"}
    assert record["response"] == "46" and record["error"] is None and record["seconds"] >= 0
    assert (columns["__num_turns__"][0], columns["stop_reason"][0]) == (4, "stop")
    assert columns["weight_version"][0] == 3
    first, second = replica.asked["p0#0"]
    assert second[0][: len(first[0])] == first[0]
    assert [p.seed for _, p in (first, second)] == [turn_key(1, 2, "p0", 0, 0), turn_key(1, 2, "p0", 0, 1)]
    assert second[1].max_tokens == RESPONSE - (length - len(TOKENIZER("#### 46")["input_ids"]) - 1)


def test_padding_masks_and_positions() -> None:
    script = {"p0#0": ["1"], "p1#0": [call("1+1"), "#### 2"], "p2#0": ["#### 12345"]}
    data, _ = roll(lambda name, turn: script[name][turn], prompts=make_prompts(3))
    batch = data.batch
    assert batch["prompts"].shape == (3, PROMPT) and batch["responses"].shape == (3, RESPONSE)
    assert torch.equal(batch["input_ids"], torch.cat([batch["prompts"], batch["responses"]], dim=1))
    for i in range(3):
        attention = batch["attention_mask"][i]
        start, end = int(attention.argmax()), PROMPT + int(attention[PROMPT:].sum())
        assert attention[start:end].all() and attention.sum() == end - start
        assert batch["position_ids"][i, start:end].tolist() == list(range(end - start))
        assert (batch["input_ids"][i][attention == 0] == TOKENIZER.pad_token_id).all()
        prompt = TOKENIZER.decode(batch["prompts"][i, start:])
        assert prompt.startswith("<|im_start|>system\nTools: calculator") and prompt.endswith("assistant\n")
        mask = batch["response_mask"][i]
        assert (mask <= attention[PROMPT:]).all()
        assert torch.equal(batch["rollout_log_probs"][i], torch.where(mask == 1, -0.5, 0.0))
    assert data.non_tensor_batch["uid"].tolist() == ["p0", "p1", "p2"]


@pytest.mark.parametrize(
    ("said", "error", "answer"),
    [
        ("<tool_call>{nonsense</tool_call>", "malformed", "Error: Invalid JSON in tool call"),
        (call("1", name="clock"), "unknown_tool", "Error: Unknown function 'clock'. Available: calculator"),
        ('<tool_call>{"name": "calculator", "arguments": {}}</tool_call>', "arguments", "'expression' is a required"),
        (
            '<tool_call>{"name": "calculator", "arguments": {"expression": 3}}</tool_call>',
            "arguments",
            "3 is not of type 'string'",
        ),
    ],
)
def test_wrong_calls_are_answered(said: str, error: str, answer: str) -> None:
    data, _ = roll(turns_of(said, "#### 1"))
    (record,) = data.non_tensor_batch["tool_calls"][0]
    assert record["error"] == error and answer in record["response"]
    assert data.non_tensor_batch["messages"][0][2] == {"role": "tool", "content": record["response"]}
    assert data.meta_info["metrics"][f"tool_calls/error/{error}"] == 1.0
    assert data.meta_info["metrics"]["tool_calls/success"] == 0.0


def test_only_so_many_calls_a_turn() -> None:
    said = call("1+1") + call("2+2") + call("3+3")
    data, _ = roll(turns_of(said, "done"), make_config(max_parallel_calls=2))
    records = data.non_tensor_batch["tool_calls"][0]
    assert [r["response"] for r in records[:2]] == ["2", "4"]
    assert records[2]["error"] == "too_many" and "only 2 tool calls" in records[2]["response"]
    assert data.non_tensor_batch["__num_turns__"][0] == 4


@pytest.mark.parametrize(
    ("limits", "turns", "reason"),
    [
        ({"max_assistant_turns": 2}, 4, "max_assistant_turns"),
        ({"max_user_turns": 1}, 4, "max_user_turns"),
        ({"max_assistant_turns": 1}, 2, "max_assistant_turns"),
        ({}, None, "length"),
    ],
)
def test_limits_end_a_trajectory(limits: dict[str, int], turns: int | None, reason: str) -> None:
    data, _ = roll(lambda *_: call("1+1"), make_config(**limits))
    assert data.non_tensor_batch["stop_reason"][0] == reason
    if turns is not None:
        assert data.non_tensor_batch["__num_turns__"][0] == turns
    assert data.batch["response_mask"][0, :].any() and len(data.batch["responses"][0]) == RESPONSE


@given(st.integers(1, 80), st.lists(st.sampled_from([call("1+1"), call("1234*5678"), "<tool_call>", "12"]), min_size=9))
@settings(max_examples=40, deadline=None)
def test_the_response_never_grows_over_its_budget(budget: int, texts: list[str]) -> None:
    config = make_config({"max_response_length": budget})
    data, replica = roll(lambda _, turn: texts[turn % len(texts)], config)
    length = int(data.batch["attention_mask"][0, PROMPT:].sum())
    assert 0 < length <= budget
    assert data.batch["response_mask"][0, length - 1] == 1  # no tool answer that nothing follows
    asked = replica.asked["p0#0"]
    assert sum(1 for m in data.non_tensor_batch["messages"][0] if m["role"] == "assistant") == len(asked)


@pytest.mark.parametrize(
    ("side", "kept"),
    [
        ("left", "111111...(truncated)"),
        ("right", "(truncated)...888888"),
        ("middle", "111...(truncated)...888"),
    ],
)
def test_long_answers_are_cut(side: str, kept: str) -> None:
    config = make_config(max_tool_response_length=6, tool_response_truncate_side=side)
    data, _ = roll(turns_of(call("11111111*10**8 + 88888888"), "ok"), config)
    assert data.non_tensor_batch["tool_calls"][0][0]["response"] == kept


class Recorder(BaseTool):
    """Writes down its life; fails, hangs or rewards as it is told."""

    def __init__(self, schema: ToolSchema, timeout: float = 30.0) -> None:
        super().__init__({"timeout": timeout}, schema)
        self.events: list[tuple[Any, ...]] = []

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        self.events.append(("create", instance_id, kwargs))
        return str(instance_id), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        self.events.append(("execute", instance_id, parameters, kwargs))
        match parameters["expression"]:
            case "fail":
                raise ZeroDivisionError("as asked")
            case "hang":
                await asyncio.sleep(60)
        return ToolResponse("fine \ud800"), 0.25, {"seen": 1}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        self.events.append(("calc_reward", instance_id, kwargs))
        return 2.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.events.append(("release", instance_id, kwargs))


def make_recorder(timeout: float = 30.0) -> Recorder:
    parameters = {"properties": {"expression": {"type": "string"}}, "required": ["expression"]}
    return Recorder(ToolSchema(function={"name": "recorder", "parameters": parameters}), timeout)  # type: ignore[arg-type]


def test_the_life_of_a_tool() -> None:
    recorder = make_recorder()
    kwargs = {"recorder": {"create_kwargs": {"a": 1}, "execute_kwargs": {"b": 2}, "calc_reward_kwargs": {"c": 3}}}
    prompts = make_prompts(extra_info=[{"tools_kwargs": kwargs}])
    data, _ = roll(turns_of(call("1", "recorder"), call("2", "recorder"), "done"), prompts=prompts, recorder=recorder)
    assert recorder.events == [
        ("create", "p0#0", {"a": 1}),
        ("execute", "p0#0", {"expression": "1"}, {"b": 2}),
        ("execute", "p0#0", {"expression": "2"}, {"b": 2}),
        ("calc_reward", "p0#0", {"c": 3}),
        ("release", "p0#0", {}),
    ]
    assert data.non_tensor_batch["tool_rewards"][0] == [0.25, 0.25, 2.0]
    record = data.non_tensor_batch["tool_calls"][0][0]
    assert record["metrics"] == {"seen": 1} and record["response"] == "fine ?"


def test_a_tool_that_fails_or_hangs_is_an_answer() -> None:
    recorder = make_recorder(timeout=0.2)
    data, _ = roll(turns_of(call("fail", "recorder"), call("hang", "recorder"), "done"), recorder=recorder)
    failed, hung = data.non_tensor_batch["tool_calls"][0]
    assert (failed["error"], hung["error"]) == ("execution", "timeout")
    assert failed["response"] == "Error executing tool recorder: ZeroDivisionError: as asked"
    assert "no answer within 0.2 seconds" in hung["response"] and hung["seconds"] < 5
    assert recorder.events[-1][0] == "release"


class SlowStart(Recorder):
    """Its first creations take long, fail or are cancelled."""

    begins: tuple[str, ...] = ()

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        nth = len(self.events)
        created = await super().create(instance_id, **kwargs)
        match self.begins[nth : nth + 1]:
            case ("slow",):
                await asyncio.sleep(0.3)
            case ("fail",):
                raise OSError("no port")
            case ("cancel",):
                raise asyncio.CancelledError
        return created


@pytest.mark.parametrize(
    ("begins", "errors", "creations"),
    [
        (("slow",), ["timeout", None], 1),
        (("fail",), ["execution", None], 2),
        (("cancel",), ["execution", None], 2),
    ],
)
def test_a_tool_whose_creation_goes_wrong_can_be_called_again(
    begins: tuple[str, ...], errors: list[str | None], creations: int
) -> None:
    recorder = SlowStart(make_recorder().tool_schema, timeout=0.2)
    recorder.begins = begins
    data, _ = roll(turns_of(call("1", "recorder"), call("2", "recorder"), "done"), recorder=recorder)
    assert [record["error"] for record in data.non_tensor_batch["tool_calls"][0]] == errors
    assert [e[0] for e in recorder.events] == ["create"] * creations + ["execute", "calc_reward", "release"]


def test_tools_are_released_when_the_rollout_fails() -> None:
    recorder = make_recorder()

    def script(name: str, turn: int) -> str:
        if turn:
            raise RuntimeError("engine broke")
        return call("1", "recorder")

    with pytest.raises(RuntimeError, match="engine broke"):
        roll(script, prompts=make_prompts(2), recorder=recorder)
    assert [e[0] for e in recorder.events].count("create") == [e[0] for e in recorder.events].count("release") > 0
    assert "calc_reward" not in [e[0] for e in recorder.events]


def test_a_stop_is_noticed_while_a_tool_is_waited_for() -> None:
    recorder, start = make_recorder(), time.monotonic()

    def stop_check() -> None:
        if time.monotonic() - start > 0.5:
            raise StopRequested("stop file")

    manager = AgentLoopManager(make_config(), TOKENIZER, ScriptedReplica(lambda *_: call("hang", "recorder")))
    manager.tools["recorder"] = recorder
    with pytest.raises(StopRequested):
        manager.generate_sequences(make_prompts(3), seed=0, step=0, sampling=SamplingParams(), stop_check=stop_check)
    assert time.monotonic() - start < 10
    assert [e[0] for e in recorder.events].count("release") == 3


def test_every_trajectory_leaves_the_replica() -> None:
    prompts = make_prompts(4, uid=["b", "b", "a", "a"], sample=[1, 0, 0, 0])
    _, replica = roll(turns_of("1"), prompts=prompts)
    assert replica.order == ["a#0", "a#0#2", "b#0", "b#1"]
    assert sorted(replica.left) == sorted(replica.order)
    seeds = {name: asked[0][1].seed for name, asked in replica.asked.items()}
    assert seeds["a#0"] == seeds["a#0#2"] and len(set(seeds.values())) == 3


def test_rows_choose_their_loop_and_tools() -> None:
    prompts = make_prompts(3, agent_name=["single_turn_agent", None, "tool_agent"], extra_info=[
        {}, {"tool_selection": []}, {"tool_selection": ["calculator"]}])  # fmt: skip
    data, _ = roll(lambda _, turn: call("1+1") if turn == 0 else "2", prompts=prompts)
    assert data.non_tensor_batch["__num_turns__"].tolist() == [2, 4, 4]
    assert [c[0]["error"] if c else "-" for c in data.non_tensor_batch["tool_calls"]] == ["-", "unknown_tool", None]
    texts = TOKENIZER.batch_decode(data.batch["prompts"], skip_special_tokens=True)
    assert ["Tools:" in text for text in texts] == [False, False, True]
    with pytest.raises(UserError, match=r"tool_selection names \['clock'\]"):
        roll(turns_of("1"), prompts=make_prompts(extra_info=[{"tool_selection": ["clock"]}]))


@register("shouting_agent")
class ShoutingLoop(AgentLoopBase):
    async def run(self, key: Any, sampling: SamplingParams, row: Any) -> AgentLoopOutput:
        ids = self.chat({}).prompt_ids([{"role": "user", "content": "LOUD"}])
        trajectory = AgentLoopOutput(ids, num_turns=2)
        trajectory.add_sampled(await self.generate(key, sampling, ids, turn=0, max_tokens=5))
        return trajectory


@pytest.mark.parametrize("name", ["shouting_agent", f"{__name__}.ShoutingLoop"])
def test_the_users_own_loop(name: str) -> None:
    data, _ = roll(turns_of("hello"), prompts=make_prompts(agent_name=[name]))
    assert "LOUD" in TOKENIZER.decode(data.batch["prompts"][0])


@pytest.mark.parametrize(
    ("name", "said"), [("tool_agnt", "did you mean 'tool_agent'"), ("no.such.Loop", "no.such.Loop")]
)
def test_an_unknown_loop_is_refused(name: str, said: str) -> None:
    config = from_dict({"actor_rollout_ref": {"rollout": {"agent": {"default_agent_loop": name}}}})
    with pytest.raises(UserError, match=said):
        AgentLoopManager(config, TOKENIZER, ScriptedReplica(turns_of("1")))


@pytest.mark.parametrize("truncation", ["error", "left", "right", "middle"])
def test_prompts_over_the_limit(truncation: str) -> None:
    prompts = make_prompts(raw_prompt=[[{"role": "user", "content": "1 2 3 4 5 6 7 8 9 " * 5}]])
    config = make_config({"truncation": truncation})
    if truncation == "error":
        with pytest.raises(UserError, match=r"prompt p0 has \d+ tokens, data.max_prompt_length is 48"):
            roll(turns_of("1"), config, prompts)
        return
    data, _ = roll(turns_of("1"), config, prompts)
    text = TOKENIZER.decode(data.batch["prompts"][0])
    assert data.batch["attention_mask"][0, :PROMPT].all()
    assert text.startswith("<|im_start|>system") == (truncation != "left")
    assert text.endswith("assistant\n") == (truncation != "right")


def test_metrics_of_several_ranks_together() -> None:
    parts = [roll(turns_of(call("1+1"), "2"))[0], roll(turns_of("2"))[0]]
    metrics = rollout_metrics(DataProto.concat(parts))
    assert (metrics["num_turns/mean"], metrics["num_turns/max"]) == (3.0, 4.0)
    assert (metrics["tool_calls/per_trajectory"], metrics["tool_calls/success"]) == (0.5, 1.0)
    assert rollout_metrics(parts[0][[]]) == {}


def test_with_the_real_engine_twice_the_same() -> None:
    config = make_config()
    results = []
    for _ in range(2):
        model = build_model(TINY, TOKENIZER, seed=4)
        replica = HFReplica(config.actor_rollout_ref.rollout, config.data, model, tokenizer=TOKENIZER)
        manager = AgentLoopManager(config, TOKENIZER, replica)
        prompts = make_prompts(3).repeat(4)
        prompts.non_tensor_batch["sample"][:] = list(range(4)) * 3
        results.append(manager.generate_sequences(prompts, seed=5, step=6, sampling=SamplingParams(temperature=1.2)))
    first, second = results
    for name, tensor in first.batch.items():
        assert torch.equal(tensor, second.batch[name]), name
    sampled = {tuple(row) for row in first.batch["responses"].tolist()}
    assert len(sampled) == 12
