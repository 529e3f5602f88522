"""One question, one answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hpcrl.workers.rollout.agent_loop.base import AgentLoopBase, AgentLoopOutput, TrajectoryKey, fit_prompt
from hpcrl.workers.rollout.base import SamplingParams


class SingleTurnAgentLoop(AgentLoopBase):
    """`single_turn_agent`: the model answers once, without tools."""

    async def run(self, key: TrajectoryKey, sampling: SamplingParams, row: Mapping[str, Any]) -> AgentLoopOutput:
        messages = [dict(message) for message in row["raw_prompt"]]
        data = self.config.data
        prompt_ids = fit_prompt(self.chat({}).prompt_ids(messages), data, key.uid)
        trajectory = AgentLoopOutput(prompt_ids)
        start = time.monotonic()
        output = await self.generate(key, sampling, prompt_ids, turn=0, max_tokens=data.max_response_length)
        trajectory.generate_seconds = time.monotonic() - start
        trajectory.add_sampled(output)
        trajectory.messages = [*messages, {"role": "assistant", "content": self.turn_text(output)}]
        trajectory.num_turns = 2
        trajectory.stop_reason = output.stop_reason
        return trajectory
