"""All trajectories of a batch at the same time, from prompts to padded tensors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hpcrl.config.schema import Config
from hpcrl.protocol import DataProto
from hpcrl.tools.base import BaseTool
from hpcrl.tools.load import load_tools
from hpcrl.workers.rollout.agent_loop.base import AgentLoopBase, AgentLoopOutput, TrajectoryKey, get_agent_loop_class
from hpcrl.workers.rollout.agent_loop.metrics import rollout_metrics
from hpcrl.workers.rollout.base import RolloutReplica, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

POLL_SECONDS = 0.2
"""How often a stop is looked for while tools are waited for; the engine looks between its steps."""


class AgentLoopManager:
    """Runs the agent loops of a batch against one replica."""

    def __init__(self, config: Config, tokenizer: PreTrainedTokenizerBase, replica: RolloutReplica) -> None:
        """Loads the tools that `multi_turn.tool_config_path` declares; UserError when they cannot be loaded."""
        self.config = config
        self.tokenizer = tokenizer
        self.replica = replica
        rollout = config.actor_rollout_ref.rollout
        self.tools: dict[str, BaseTool] = {}
        if rollout.multi_turn.enable and rollout.multi_turn.tool_config_path is not None:
            self.tools = load_tools(rollout.multi_turn.tool_config_path)
        self.default_loop = default_agent_loop(config)
        self._loops: dict[str, AgentLoopBase] = {}
        self._loop(self.default_loop)

    def generate_sequences(
        self,
        prompts: DataProto,
        *,
        seed: int,
        step: int,
        sampling: SamplingParams,
        stop_check: Callable[[], None] | None = None,
    ) -> DataProto:
        """Make a trajectory of every row.

        Args:
            prompts: non-tensor columns raw_prompt (messages), uid (str), sample (int), and what agent loops and
                rewards want (extra_info, agent_name, …). (uid, sample) name a trajectory: equal ones are equal.
            seed, step: with (uid, sample, turn) the key of all randomness.
            sampling: temperature and cuts; `seed` and `max_tokens` are set per turn (max_tokens bounds a turn).
            stop_check: polled all the time; what it raises ends the rollout and is raised here.

        Returns:
            the prompts' columns, and
            batch: prompts (bs, P) padded on the left, responses (bs, R) padded on the right, input_ids,
                attention_mask, position_ids (bs, P + R), response_mask (bs, R) 1 exactly on sampled tokens,
                rollout_log_probs (bs, R) float32;
            non_tensor_batch: __num_turns__, messages, tool_calls, tool_rewards, stop_reason, weight_version;
            meta_info: timing (seconds), metrics.
        """
        start = time.monotonic()
        outputs = asyncio.run(self._run(prompts, seed, step, sampling, stop_check or _never))
        result = self._collect(prompts, outputs)
        tool_seconds = sum(call["seconds"] for output in outputs for call in output.tool_calls)
        waits = [output.generate_seconds for output in outputs]
        result.meta_info["timing"] = {
            "generate_sequences": time.monotonic() - start,
            "agent_loop/generate/mean": sum(waits) / max(len(waits), 1),
            "agent_loop/tool_calls/sum": tool_seconds,
        }
        result.meta_info["metrics"] = rollout_metrics(result)
        return result

    async def _run(
        self, prompts: DataProto, seed: int, step: int, sampling: SamplingParams, stop_check: Callable[[], None]
    ) -> list[AgentLoopOutput]:
        """The trajectories in the rows' order. The first error of any of them ends the others."""
        rows = [{name: values[i] for name, values in prompts.non_tensor_batch.items()} for i in range(len(prompts))]
        keys = trajectory_keys(rows, seed, step)
        in_order = sorted(keys, key=lambda key: (key.uid, key.sample, key.request_id))
        self.replica.begin([key.request_id for key in in_order], stop_check)
        tasks = [asyncio.create_task(self._one(key, sampling, row)) for key, row in zip(keys, rows, strict=True)]
        watcher = asyncio.create_task(_watch(stop_check))
        everything = asyncio.gather(*tasks)
        try:
            await asyncio.wait({everything, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if watcher.done():
                watcher.result()
            return await everything
        finally:
            for task in (watcher, *tasks):
                task.cancel()
            await asyncio.gather(watcher, *tasks, return_exceptions=True)
            await asyncio.gather(everything, return_exceptions=True)

    async def _one(self, key: TrajectoryKey, sampling: SamplingParams, row: dict[str, Any]) -> AgentLoopOutput:
        try:
            return await self._loop(row.get("agent_name") or self.default_loop).run(key, sampling, row)
        finally:
            self.replica.leave(key.request_id)

    def _loop(self, name: str) -> AgentLoopBase:
        if name not in self._loops:
            loop_class = get_agent_loop_class(name)
            self._loops[name] = loop_class(self.config, self.tokenizer, self.replica, self.tools)
        return self._loops[name]

    def _collect(self, prompts: DataProto, outputs: list[AgentLoopOutput]) -> DataProto:
        """The trajectories as one padded batch."""
        data, pad = self.config.data, self.tokenizer.pad_token_id
        if pad is None:
            pad = self.tokenizer.eos_token_id
        width, length = data.max_prompt_length, data.max_response_length
        prompt_ids = torch.full((len(outputs), width), pad, dtype=torch.int64)
        responses = torch.full((len(outputs), length), pad, dtype=torch.int64)
        attention = torch.zeros(len(outputs), width + length, dtype=torch.int64)
        mask = torch.zeros(len(outputs), length, dtype=torch.int64)
        log_probs = torch.zeros(len(outputs), length, dtype=torch.float32)
        for i, output in enumerate(outputs):
            p, r = len(output.prompt_ids), len(output.response_ids)
            prompt_ids[i, width - p :] = torch.tensor(output.prompt_ids, dtype=torch.int64)
            responses[i, :r] = torch.tensor(output.response_ids, dtype=torch.int64)
            attention[i, width - p : width + r] = 1
            mask[i, :r] = torch.tensor(output.response_mask, dtype=torch.int64)
            log_probs[i, :r] = torch.tensor(output.response_logprobs, dtype=torch.float32)
        tensors = {
            "prompts": prompt_ids,
            "responses": responses,
            "input_ids": torch.cat([prompt_ids, responses], dim=1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
            "response_mask": mask,
            "rollout_log_probs": log_probs,
        }
        added = {
            "__num_turns__": [output.num_turns for output in outputs],
            "messages": [output.messages for output in outputs],
            "tool_calls": [output.tool_calls for output in outputs],
            "tool_rewards": [output.tool_rewards for output in outputs],
            "stop_reason": [output.stop_reason for output in outputs],
            "weight_version": [output.weight_version for output in outputs],
        }
        return DataProto.from_dict(tensors, {**prompts.non_tensor_batch, **added}, dict(prompts.meta_info))


def default_agent_loop(config: Config) -> str:
    """The agent loop of rows that name none."""
    rollout = config.actor_rollout_ref.rollout
    named = rollout.agent.default_agent_loop
    return named or ("tool_agent" if rollout.multi_turn.enable else "single_turn_agent")


def trajectory_keys(rows: list[dict[str, Any]], seed: int, step: int) -> list[TrajectoryKey]:
    """A key for each row; one that stands in the batch twice (padding) gets the same randomness, not the same name."""
    seen: dict[str, int] = {}
    keys = []
    for row in rows:
        uid, sample = str(row["uid"]), int(row.get("sample", 0))
        name = f"{uid}#{sample}"
        seen[name] = seen.get(name, 0) + 1
        request_id = name if seen[name] == 1 else f"{name}#{seen[name]}"
        keys.append(TrajectoryKey(seed, step, uid, sample, request_id))
    return keys


async def _watch(stop_check: Callable[[], None]) -> None:
    while True:
        stop_check()
        await asyncio.sleep(POLL_SECONDS)


def _never() -> None:
    """A stop check that never asks for a stop."""
