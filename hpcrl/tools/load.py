"""Tools from the YAML file of `multi_turn.tool_config_path`. Imports no torch, so that submission can check with it."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil

import hpcrl.tools
from hpcrl.config.schema import Config
from hpcrl.config.seam import UserError
from hpcrl.config.tools import ToolEntry, read_tool_config
from hpcrl.tools.base import BaseTool


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
