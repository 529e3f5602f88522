"""The base class of tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import uuid4

from hpcrl.config.seam import UserError
from hpcrl.tools.schemas import ToolResponse, ToolSchema

DEFAULT_TIMEOUT = 60.0


class BaseTool:
    """One tool, shared by all trajectories; what belongs to one trajectory is kept under its instance_id.

    A trajectory that calls the tool creates an instance at its first call, executes on it at every call, and at its
    end asks for its reward and releases it. What `execute` raises becomes an answer that the model reads.
    """

    config_keys: ClassVar[frozenset[str] | None] = None
    """Keys of `config` that the tool reads, besides `type` and `timeout`; None: not checked."""

    def __init__(self, config: Mapping[str, Any], tool_schema: ToolSchema) -> None:
        """Args:
        config: the `config` of the tool's entry in the YAML file; `timeout` bounds a call, in seconds.
        tool_schema: its name and what it takes.
        """
        self.config = dict(config)
        self.tool_schema = tool_schema
        self.name = tool_schema.name
        timeout = self.config.get("timeout", DEFAULT_TIMEOUT)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
            raise UserError(f"tool {self.name}: config.timeout must be a positive number of seconds, got {timeout!r}")
        self.timeout = float(timeout)
        if self.config_keys is not None:
            unknown = sorted(self.config.keys() - self.config_keys - {"type", "timeout"})
            if unknown:
                known = sorted(self.config_keys | {"timeout"})
                raise UserError(f"tool {self.name}: unknown keys {unknown} in its config, known are {known}")

    def get_openai_tool_schema(self) -> dict[str, Any]:
        """The schema that the chat template shows to the model."""
        return self.tool_schema.to_openai()

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Start an instance for a trajectory; `kwargs` are the row's create_kwargs."""
        return instance_id or uuid4().hex, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Carry out a call.

        Args:
            instance_id: from `create`.
            parameters: the arguments, which fit the schema.
            **kwargs: the row's execute_kwargs.

        Returns:
            the answer, the step's reward, and metrics by name.
        """
        raise TypeError(f"the tool class {type(self).__name__} does not define execute")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """The reward of the whole instance, asked for once at the trajectory's end."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Give up what the instance holds; always called, also when the trajectory failed."""
