"""Tools from the YAML file of `multi_turn.tool_config_path`. Imports no torch, so that submission can check with it."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

import hpcrl
import hpcrl.tools
from hpcrl.config.schema import Config
from hpcrl.config.seam import UserError
from hpcrl.tools.base import BaseTool
from hpcrl.tools.schemas import ToolSchema

ENTRY_KEYS = {"class_name", "config", "tool_schema"}


@dataclass(frozen=True)
class ToolEntry:
    """One tool as declared; its class is not imported yet."""

    where: str
    class_name: str
    config: dict[str, Any]
    schema: ToolSchema


def load_tools(tool_config_path: str) -> dict[str, BaseTool]:
    """The tools of a YAML file, by name, in its order.

    Raises:
        UserError: a file, class or schema that cannot be used, with what to change.
    """
    tools: dict[str, BaseTool] = {}
    for entry in read_tool_config(tool_config_path):
        tool_class = _import_class(entry)
        try:
            tools[entry.schema.name] = tool_class(entry.config, entry.schema)
        except UserError as error:
            raise UserError(f"{entry.where}: {error}") from error
        except Exception as error:
            raise UserError(f"{entry.where}: {entry.class_name} could not be made: {error!r}") from error
    return tools


def check_tools(config: Config, deep: bool = True) -> None:
    """Refuse a tool configuration that cannot work; without `deep`, the tools' modules are looked up, not imported."""
    multi_turn = config.actor_rollout_ref.rollout.multi_turn
    if not multi_turn.enable or multi_turn.tool_config_path is None:
        return
    if deep:
        load_tools(multi_turn.tool_config_path)
        return
    for entry in read_tool_config(multi_turn.tool_config_path):
        _find_module(entry)


def read_tool_config(tool_config_path: str) -> list[ToolEntry]:
    """The entries of the file, their schemas checked."""
    path = _resolved(tool_config_path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    entries = content.get("tools") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{path}: a list `tools:` of {{class_name, config, tool_schema}} is needed")
    tools = [_entry(f"{path}, tools[{i}]", value) for i, value in enumerate(entries)]
    names = [tool.schema.name for tool in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{path}: two tools have the same name: {twice}")
    return tools


def _resolved(tool_config_path: str) -> Path:
    """The file, looked for from the working directory, then beside the package (a run's code snapshot)."""
    given = Path(tool_config_path).expanduser()
    package_root = Path(hpcrl.__file__).parent.parent
    for candidate in (given, package_root / given):
        if candidate.is_file():
            return candidate
    shipped = sorted(str(p.relative_to(package_root)) for p in package_root.glob("configs/tools/*.yaml"))
    near = difflib.get_close_matches(tool_config_path, shipped, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; shipped are {shipped}" if shipped else ""
    raise UserError(f"multi_turn.tool_config_path: no file {tool_config_path}{hint}")


def _entry(where: str, value: Any) -> ToolEntry:
    if not isinstance(value, dict):
        raise UserError(f"{where}: a mapping {{class_name, config, tool_schema}} is needed, got {value!r}")
    unknown = sorted(set(map(str, value)) - ENTRY_KEYS)
    if unknown:
        raise UserError(f"{where}: unknown keys {unknown}, known are {sorted(ENTRY_KEYS)}")
    class_name, config = value.get("class_name"), value.get("config") or {}
    if not isinstance(class_name, str) or "." not in class_name:
        raise UserError(f"{where}: class_name must be a dotted path such as hpcrl.tools.calculator.CalculatorTool")
    if not isinstance(config, dict):
        raise UserError(f"{where}: config must be a mapping, got {config!r}")
    if config.get("type", "native") != "native":
        raise UserError(f"{where}: config.type must be native, got {config['type']!r}")
    if "tool_schema" not in value:
        raise UserError(f"{where}: tool_schema is missing")
    try:
        schema = TypeAdapter(ToolSchema).validate_python(value["tool_schema"])
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UserError(f"{where}: tool_schema is not valid: {problems}") from None
    undescribed = sorted(set(schema.function.parameters.required) - schema.function.parameters.properties.keys())
    if undescribed:
        raise UserError(f"{where}: tool_schema requires {undescribed}, which are not among its properties")
    return ToolEntry(where, class_name, config, schema)


def _find_module(entry: ToolEntry) -> str:
    """The name of the entry's module, which exists."""
    module_name = entry.class_name.rpartition(".")[0]
    try:
        found = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        shipped = [f"hpcrl.tools.{module.name}" for module in pkgutil.iter_modules(hpcrl.tools.__path__)]
        near = difflib.get_close_matches(module_name, shipped, n=1)
        hint = (
            f"; did you mean {near[0]}?" if near else "; it must be importable from the working directory or installed"
        )
        raise UserError(f"{entry.where}: no module {module_name!r} for the tool class {entry.class_name}{hint}")
    return module_name


def _import_class(entry: ToolEntry) -> type[BaseTool]:
    module_name, class_name = _find_module(entry), entry.class_name.rpartition(".")[2]
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UserError(f"{entry.where}: module {module_name} could not be imported: {error!r}") from error
    tool_class = getattr(module, class_name, None)
    if inspect.isclass(tool_class) and issubclass(tool_class, BaseTool):
        return tool_class
    named = [n for n, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, BaseTool) and c is not BaseTool]
    problem = "has no class" if tool_class is None else "must derive from hpcrl.tools.BaseTool:"
    near = difflib.get_close_matches(class_name, named, n=1) or named[:1]
    hint = f"; did you mean {near[0]}?" if near and near[0] != class_name else ""
    raise UserError(f"{entry.where}: module {module_name} {problem} {class_name}{hint}")
