"""The model calls tools over several turns."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from hpcrl.config.seam import UserError
from hpcrl.tools.base import BaseTool
from hpcrl.utils.chat import ChatTokens
from hpcrl.workers.rollout.agent_loop.base import AgentLoopBase, AgentLoopOutput, TrajectoryKey, fit_prompt
from hpcrl.workers.rollout.agent_loop.tool_session import ToolSession
from hpcrl.workers.rollout.base import SamplingParams
from hpcrl.workers.rollout.tool_parser.base import BadToolCall, ToolCall, get_tool_parser


class State(Enum):
    PENDING = auto()
    GENERATING = auto()
    PROCESSING_TOOLS = auto()
    TERMINATED = auto()


@dataclass
class _Progress:
    """Where one trajectory stands."""

    key: TrajectoryKey
    sampling: SamplingParams
    session: ToolSession
    chat: ChatTokens
    trajectory: AgentLoopOutput
    assistant_turns: int = 0
    user_turns: int = 0
    calls: list[ToolCall | BadToolCall] | None = None
    """The calls of the last turn, not yet answered."""


class ToolAgentLoop(AgentLoopBase):
    """`tool_agent`: turns of the model and answers of tools, until a turn without calls or a limit."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = self.config.actor_rollout_ref.rollout.multi_turn
        self.parser = get_tool_parser(self.limits.format)

    async def run(self, key: TrajectoryKey, sampling: SamplingParams, row: Mapping[str, Any]) -> AgentLoopOutput:
        extra = row.get("extra_info") or {}
        tools = self._selected(extra.get("tool_selection"), key.uid)
        session = ToolSession(tools, key.request_id, extra.get("tools_kwargs") or {}, self.limits)
        trajectory = AgentLoopOutput([], messages=[dict(message) for message in row["raw_prompt"]])
        progress = _Progress(key, sampling, session, self.chat(tools), trajectory)
        state, finished = State.PENDING, False
        try:
            while state is not State.TERMINATED:
                match state:
                    case State.PENDING:
                        state = self._start(progress)
                    case State.GENERATING:
                        state = await self._generate(progress)
                    case State.PROCESSING_TOOLS:
                        state = await self._process_tools(progress)
            finished = True
        finally:
            await session.close(finished)
        trajectory.tool_calls, trajectory.tool_rewards = session.records, session.rewards
        trajectory.num_turns = 1 + progress.assistant_turns + progress.user_turns
        return trajectory

    def _selected(self, names: list[str] | None, uid: str) -> Mapping[str, BaseTool]:
        """The tools of a row: all, or those of its extra_info.tool_selection."""
        if names is None:
            return self.tools
        unknown = sorted(set(names) - self.tools.keys())
        if unknown:
            raise UserError(f"row {uid}: tool_selection names {unknown}, declared tools are {sorted(self.tools)}")
        return {name: tool for name, tool in self.tools.items() if name in names}

    def _start(self, progress: _Progress) -> State:
        ids = progress.chat.prompt_ids(progress.trajectory.messages)
        progress.trajectory.prompt_ids = fit_prompt(ids, self.config.data, progress.key.uid)
        return State.GENERATING

    async def _generate(self, progress: _Progress) -> State:
        trajectory = progress.trajectory
        ids = trajectory.prompt_ids + trajectory.response_ids
        room = self.config.data.max_response_length - len(trajectory.response_ids)
        start = time.monotonic()
        output = await self.generate(progress.key, progress.sampling, ids, progress.assistant_turns, room)
        trajectory.generate_seconds += time.monotonic() - start
        trajectory.add_sampled(output)
        progress.assistant_turns += 1
        text = self.turn_text(output)
        trajectory.messages.append({"role": "assistant", "content": text})
        trajectory.stop_reason = output.stop_reason
        if output.stop_reason != "stop":
            return State.TERMINATED
        progress.calls = self.parser.parse(text)
        if not progress.calls:
            return State.TERMINATED
        if progress.assistant_turns == self.limits.max_assistant_turns:
            trajectory.stop_reason = "max_assistant_turns"
            return State.TERMINATED
        if progress.user_turns == self.limits.max_user_turns:
            trajectory.stop_reason = "max_user_turns"
            return State.TERMINATED
        return State.PROCESSING_TOOLS

    async def _process_tools(self, progress: _Progress) -> State:
        trajectory, chat = progress.trajectory, progress.chat
        messages = await progress.session.answer(progress.calls or [])
        ended = trajectory.response_ids[-1] == chat.end_of_turn
        ids = chat.followup_ids(trajectory.messages, messages, ended=ended)
        if len(trajectory.response_ids) + len(ids) >= self.config.data.max_response_length:
            trajectory.stop_reason = "length"
            return State.TERMINATED
        trajectory.add_given(ids)
        trajectory.messages += messages
        progress.user_turns += 1
        return State.GENERATING
