"""The YAML file of `multi_turn.tool_config_path`: which tools there are, and what each is called and takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import yaml
from pydantic import AfterValidator, Field, StringConstraints, TypeAdapter, ValidationError

from hpcrl.config.base import section
from hpcrl.config.keys import nearest
from hpcrl.config.messages import ConfigError, describe_all, offer, shown

ENTRY_KEYS = ("class_name", "config", "tool_schema")
_PROJECT_ROOT = Path(__file__).resolve().parents[2]


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
        described: dict[str, Any] = {"name": function.name, "description": function.description, "parameters": shown}
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
class ToolEntry:
    """One tool as declared; its class is not imported yet."""

    where: str
    class_name: str
    config: dict[str, Any]
    schema: ToolSchema


def is_dotted(name: str) -> bool:
    """Identifiers with dots between them."""
    return all(part.isidentifier() for part in name.split("."))


def read_tool_config(tool_config_path: str | Path) -> list[ToolEntry]:
    """The entries of a tools' YAML file, their schemas checked; no tool's class is imported.

    Args:
        tool_config_path: a path from the working directory, or from the folder that holds the package.

    Raises:
        ConfigError: the file is missing or no YAML, declares no tool, or entries are wrong; all of it is named.
    """
    path = _found(tool_config_path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    entries = content.get("tools") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: a list `tools:` of {{class_name, config, tool_schema}} is needed")
    problems = [f"{path}: unknown key {key!r}; a file of tools has tools alone" for key in content if key != "tools"]
    tools: list[ToolEntry] = []
    for number, value in enumerate(entries):
        entry = _entry(f"{path}, tools[{number}]", value, problems)
        if entry is not None:
            tools.append(entry)
    names = [tool.schema.name for tool in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        problems.append(f"{path}: two tools have the same name: {', '.join(twice)}")
    if problems:
        raise ConfigError(problems)
    return tools


def _found(tool_config_path: str | Path) -> Path:
    """The file, looked for from the working directory, then beside the package (a run's code snapshot)."""
    given = Path(tool_config_path).expanduser()
    for candidate in (given, _PROJECT_ROOT / given):
        if candidate.is_file():
            return candidate
    shipped = sorted(str(path.relative_to(_PROJECT_ROOT)) for path in _PROJECT_ROOT.glob("configs/tools/*.yaml"))
    close = offer(nearest(str(tool_config_path), shipped, cutoff=0.5))
    key = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
    raise ConfigError(f"{key}: no file {tool_config_path}{close or offer(shipped, '; shipped: ')}")


def _entry(where: str, value: Any, problems: list[str]) -> ToolEntry | None:
    """One entry; what is wrong with it is added to the problems."""
    if not isinstance(value, dict):
        problems.append(f"{where}: {shown(value)} is not allowed; it must be {{class_name, config, tool_schema}}")
        return None
    before = len(problems)
    for key in value:
        if key not in ENTRY_KEYS:
            close = offer(nearest(str(key), ENTRY_KEYS)) or f"; an entry has {', '.join(ENTRY_KEYS)}"
            problems.append(f"{where}.{key}: unknown key{close}")
    class_name, config = value.get("class_name"), value.get("config") or {}
    if not isinstance(class_name, str) or "." not in class_name or not is_dotted(class_name):
        problems.append(
            f"{where}.class_name: {shown(class_name)} is no dotted path, such as hpcrl.tools.calculator.CalculatorTool"
        )
    if not isinstance(config, dict):
        problems.append(f"{where}.config: {shown(config)} is not allowed; it must be a mapping, written {{key: value}}")
    elif config.get("type", "native") != "native":
        problems.append(f"{where}.config.type: {shown(config['type'])} is not allowed; allowed: native")
    schema = _schema(f"{where}.tool_schema", value, problems)
    if schema is None or len(problems) > before:
        return None
    return ToolEntry(where, str(class_name), config, schema)


def _schema(where: str, entry: dict[str, Any], problems: list[str]) -> ToolSchema | None:
    if not isinstance(entry.get("tool_schema"), dict):
        problems.append(f"{where}: missing; it must be a function's schema, written {{type: function, function: …}}")
        return None
    try:
        schema = TypeAdapter(ToolSchema).validate_python(entry["tool_schema"])
    except ValidationError as failure:
        problems += describe_all(failure, ToolSchema, f"{where}.")
        return None
    parameters = schema.function.parameters
    for name in parameters.required:
        if name not in parameters.properties:
            close = offer(nearest(name, parameters.properties))
            problems.append(f"{where}.function.parameters.required: {name} is not among the properties{close}")
    return schema
