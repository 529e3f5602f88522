"""What a tool is called and takes (OpenAI's function schema), and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.config.tools import ToolFunction as ToolFunction
from hpcrl.config.tools import ToolParameters as ToolParameters
from hpcrl.config.tools import ToolSchema as ToolSchema


@dataclass(frozen=True)
class ToolResponse:
    """A tool's answer."""

    text: str = ""
    """What the model reads."""
