"""What a tool is called and takes (OpenAI's function schema), and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jsonschema
from pydantic import AfterValidator, Field, StringConstraints

from hpcrl.config.base import section


def _valid_properties(properties: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for name, schema in properties.items():
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise ValueError(f"{name}: {error.message}") from None
    return properties


@section
class ToolParameters:
    type: Literal["object"] = "object"
    """Arguments are always a JSON object."""
    properties: Annotated[dict[str, dict[str, Any]], AfterValidator(_valid_properties)] = Field(default_factory=dict)
    """Argument name to its JSON schema (type, description, enum, …)."""
    required: list[str] = Field(default_factory=list)
    """Arguments that must be given."""
    additionalProperties: bool | None = None
    """false: refuse arguments that are not among `properties`."""


@section
class ToolFunction:
    name: Annotated[str, StringConstraints(min_length=1)]
    """Name by which the model calls the tool."""
    description: str = ""
    """What it does, for the model."""
    parameters: ToolParameters = Field(default_factory=ToolParameters)
    """What it takes."""
    strict: bool | None = None
    """Handed to the chat template as it stands."""


@section
class ToolSchema:
    """A tool's schema in OpenAI's form."""

    type: Literal["function"] = "function"
    """Only functions exist."""
    function: ToolFunction
    """The function."""

    @property
    def name(self) -> str:
        return self.function.name

    def to_openai(self) -> dict[str, Any]:
        """The plain form that a chat template renders; what was not given stays out of it."""
        function, parameters = self.function, self.function.parameters
        shown: dict[str, Any] = {"type": parameters.type, "properties": parameters.properties}
        shown["required"] = parameters.required
        if parameters.additionalProperties is not None:
            shown["additionalProperties"] = parameters.additionalProperties
        described = {"name": function.name, "description": function.description, "parameters": shown}
        if function.strict is not None:
            described["strict"] = function.strict
        return {"type": self.type, "function": described}

    def argument_error(self, arguments: dict[str, Any]) -> str | None:
        """What is wrong with the arguments of a call; None when they fit."""
        validator = jsonschema.Draft202012Validator(self.to_openai()["function"]["parameters"])
        try:
            error = next(iter(validator.iter_errors(arguments)), None)
        except (RecursionError, ArithmeticError, ValueError) as failure:  # infinite numbers, deep nesting
            return f"they cannot be checked ({type(failure).__name__})"
        if error is None:
            return None
        where = ".".join(str(step) for step in error.absolute_path)
        return f"{where}: {error.message}" if where else error.message


@dataclass(frozen=True)
class ToolResponse:
    """A tool's answer."""

    text: str = ""
    """What the model reads."""
