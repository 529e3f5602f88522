"""The tools of one trajectory: instances, calls, and every failure as text that the model reads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrl.config.rollout import MultiTurnConfig
from hpcrl.tools.base import BaseTool
from hpcrl.workers.rollout.tool_parser.base import BadToolCall, ToolCall

logger = logging.getLogger(__name__)


@dataclass
class ToolSession:
    """What a trajectory does with its tools."""

    tools: Mapping[str, BaseTool]
    instance_id: str
    kwargs: Mapping[str, Mapping[str, Any]]
    """The row's tools_kwargs: tool name to {create_kwargs, execute_kwargs, calc_reward_kwargs, release_kwargs}."""
    limits: MultiTurnConfig
    records: list[dict[str, Any]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    _instances: dict[str, asyncio.Task[str]] = field(default_factory=dict)

    async def answer(self, calls: Sequence[ToolCall | BadToolCall]) -> list[dict[str, str]]:
        """Carry out a turn's calls together; one tool message for each, in their order."""
        allowed = self.limits.max_parallel_calls
        results = await asyncio.gather(*(self._call(call, i < allowed) for i, call in enumerate(calls)))
        for record, reward in results:
            self.records.append(record)
            if reward is not None:
                self.rewards.append(reward)
        return [{"role": "tool", "content": record["response"]} for record, _ in results]

    async def close(self, finished: bool) -> None:
        """Ask the used tools for their final rewards, where the trajectory finished, and release them."""
        for name, creation in self._instances.items():
            tool = self.tools[name]
            if not creation.done() or creation.cancelled() or creation.exception() is not None:
                creation.cancel()
                continue
            try:
                if finished:
                    reward = tool.calc_reward(creation.result(), **self._kwargs(name, "calc_reward_kwargs"))
                    self.rewards.append(float(await asyncio.wait_for(reward, tool.timeout)))
            except Exception:
                logger.exception("tool %s: calc_reward failed, its reward counts as 0", name)
                self.rewards.append(0.0)
            finally:
                await self._release(tool, creation.result())

    async def _release(self, tool: BaseTool, instance_id: str) -> None:
        try:
            release = tool.release(instance_id, **self._kwargs(tool.name, "release_kwargs"))
            await asyncio.wait_for(release, tool.timeout)
        except Exception:
            logger.exception("tool %s: release failed", tool.name)

    async def _call(self, call: ToolCall | BadToolCall, allowed: bool) -> tuple[dict[str, Any], float | None]:
        """The record of one call and its step reward (None when it was not carried out)."""
        start = time.monotonic()
        name, arguments = (call.name, call.arguments) if isinstance(call, ToolCall) else ("", {})
        text, error = self._refusal(call, allowed)
        reward, metrics = None, {}
        if error is None:
            text, reward, metrics, error = await self._execute(self.tools[name], arguments)
        record = {
            "name": name,
            "arguments": arguments,
            "response": self._cut(text),
            "seconds": time.monotonic() - start,
            "error": error,
            "metrics": metrics,
        }
        return record, reward

    def _refusal(self, call: ToolCall | BadToolCall, allowed: bool) -> tuple[str, str | None]:
        """Text for the model and kind of error of a call that cannot be carried out; ("", None) for one that can."""
        if not allowed:
            return f"Error: only {self.limits.max_parallel_calls} tool calls are allowed in one turn", "too_many"
        if isinstance(call, BadToolCall):
            return f"Error: {call.error}", "malformed"
        if call.name not in self.tools:
            return (
                f"Error: Unknown function '{call.name}'. Available: {', '.join(self.tools) or 'none'}",
                "unknown_tool",
            )
        wrong = self.tools[call.name].tool_schema.argument_error(call.arguments)
        if wrong is not None:
            return f"Error: Invalid arguments for {call.name}: {wrong}", "arguments"
        return "", None

    async def _execute(
        self, tool: BaseTool, arguments: dict[str, Any]
    ) -> tuple[str, float | None, dict[str, Any], str | None]:
        """Answer, step reward, metrics and kind of error."""
        try:
            async with asyncio.timeout(tool.timeout):
                instance_id = await self._instance(tool)
                kwargs = self._kwargs(tool.name, "execute_kwargs")
                response, reward, metrics = await tool.execute(instance_id, arguments, **kwargs)
            return response.text, float(reward or 0.0), dict(metrics or {}), None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # the trajectory itself is being stopped
                raise
            return f"Error executing tool {tool.name}: it was cancelled", None, {}, "execution"
        except TimeoutError:
            return f"Error executing tool {tool.name}: no answer within {tool.timeout:g} seconds", None, {}, "timeout"
        except Exception as error:
            logger.debug("tool %s failed", tool.name, exc_info=True)
            return f"Error executing tool {tool.name}: {type(error).__name__}: {error}", None, {}, "execution"

    async def _instance(self, tool: BaseTool) -> str:
        """The trajectory's instance of the tool, made at its first call, and again where that failed.

        A creation that outlasts a call's time goes on, and the next call waits for it.
        """
        creation = self._instances.get(tool.name)
        if creation is None or (creation.done() and (creation.cancelled() or creation.exception() is not None)):

            async def create() -> str:
                created, _ = await tool.create(self.instance_id, **self._kwargs(tool.name, "create_kwargs"))
                return created

            creation = self._instances[tool.name] = asyncio.create_task(create())
        return await asyncio.shield(creation)

    def _kwargs(self, name: str, kind: str) -> dict[str, Any]:
        return dict((self.kwargs.get(name) or {}).get(kind) or {})

    def _cut(self, text: str) -> str:
        """The answer within `max_tool_response_length` characters, and a mark where it was cut."""
        text = text.encode(errors="replace").decode()  # a lone surrogate would stop the tokenizer
        limit = self.limits.max_tool_response_length
        if len(text) <= limit:
            return text
        match self.limits.tool_response_truncate_side:
            case "left":
                return text[:limit] + "...(truncated)"
            case "right":
                return "(truncated)..." + text[-limit:]
        half = limit // 2
        return text[:half] + "...(truncated)..." + text[len(text) - half :]
