"""Hermes style: JSON between <tool_call> and </tool_call>, as Qwen2.5 and many others write it."""

from __future__ import annotations

from hpcrl.workers.rollout.tool_parser.base import BadToolCall, ToolCall, ToolParser, call_of_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(ToolParser):
    """<tool_call>{"name": "calculator", "arguments": {"expression": "12+34"}}</tool_call>"""

    def parse(self, text: str) -> list[ToolCall | BadToolCall]:
        calls: list[ToolCall | BadToolCall] = []
        for part in text.split(OPEN)[1:]:
            inside, closed, _ = part.partition(CLOSE)
            calls.append(call_of_json(inside) if closed else BadToolCall(f"Invalid tool call: {CLOSE} is missing"))
        return calls
