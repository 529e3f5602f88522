"""A stage's fingerprint: its code and packages, the config it reads, the content of its inputs. Nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

from hpcrl.config.seam import RunFolder, UserError
from workflows.completion import standing_marker
from workflows.hashing import ContentHashes, sha256_text
from workflows.paths import is_pattern, matches
from workflows.stages import Stage

PACKAGE = "package:"
"""How a value begins that names an installed package in place of a path."""


@dataclass(frozen=True)
class Fingerprint:
    """The digest, and what it was made of."""

    digest: str
    ingredients: Mapping[str, Any]


def fingerprint(run: RunFolder, stage: Stage, config: Mapping[str, Any], hashes: ContentHashes) -> Fingerprint:
    """The stage's fingerprint in this run. Raises UserError when a parent is not finished or an input is gone."""
    ingredients = static_ingredients(run.code, stage, config) | {
        "inputs": _parent_outputs(run, stage) | _input_files(run, stage, config, hashes)
    }
    return Fingerprint(_digest(ingredients), ingredients)


def static_key(code: Path, stage: Stage, config: Mapping[str, Any]) -> str:
    """What is known of the fingerprint before the stage's parents have run: the same for runs that may share it."""
    return _digest(static_ingredients(code, stage, config))


def static_ingredients(code: Path, stage: Stage, config: Mapping[str, Any]) -> dict[str, Any]:
    files = sorted({file for pattern in stage.code for file in code_matching(code, pattern)})
    return {
        "stage": stage.name,
        "command": list(stage.command),
        "code": {str(file.relative_to(code)): sha256_text(file.read_text("utf-8", "replace")) for file in files},
        "config": {key: lookup(config, key) for key in stage.config},
        "packages": {name: installed_version(name) for name in _packages(stage, config)},
    }


def _packages(stage: Stage, config: Mapping[str, Any]) -> list[str]:
    values = (value for pattern in stage.inputs for value in values_at(config, pattern))
    named = {value.removeprefix(PACKAGE) for value in values if isinstance(value, str) and value.startswith(PACKAGE)}
    return sorted({*stage.packages, *named})


def installed_version(name: str) -> str | None:
    """Version of an installed package, by the name of its distribution or of its module; None: not installed."""
    try:
        return version(name)
    except (PackageNotFoundError, ValueError):
        holders = packages_distributions().get(name.replace("-", "_")) or []
        return ", ".join(sorted({f"{holder} {version(holder)}" for holder in holders})) or None


def _digest(ingredients: Mapping[str, Any]) -> str:
    return sha256_text(json.dumps(ingredients, sort_keys=True, default=str))[:40]


def code_matching(code: Path, pattern: str) -> Iterator[Path]:
    """Python files below `code` that a glob of a stage means."""
    wanted = f"{pattern}/*" if pattern.endswith("**") else pattern
    return (file for file in code.glob(wanted) if file.suffix == ".py" and file.is_file())


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; None where a part of it is absent."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def values_at(config: Any, pattern: str) -> Iterator[Any]:
    """Every value at a dotted key whose parts may be `*`; lists give their elements at the end."""
    head, _, rest = pattern.partition(".")
    if not head:
        yield from config if isinstance(config, list) else [config]
    elif head == "*":
        for value in config.values() if isinstance(config, Mapping) else config or []:
            yield from values_at(value, rest)
    elif isinstance(config, Mapping) and head in config:
        yield from values_at(config[head], rest)


def input_paths(stage: Stage, config: Mapping[str, Any], base: Path) -> list[tuple[str, Path]]:
    """Files and folders on disk that the stage's config names: (as written, where). Hub ids are not on disk."""
    written = {value for pattern in stage.inputs for value in values_at(config, pattern) if isinstance(value, str)}
    found = []
    for text in sorted(filter(None, written)):
        places = matches(base, text)
        alone = len(places) == 1 and not is_pattern(text)
        found += [(text if alone else str(place), place) for place in places]
    return found


def _input_files(
    run: RunFolder, stage: Stage, config: Mapping[str, Any], hashes: ContentHashes
) -> dict[str, dict[str, str]]:
    return {text: hashes.tree(path) for text, path in input_paths(stage, config, run.code)}


def _parent_outputs(run: RunFolder, stage: Stage) -> dict[str, dict[str, str]]:
    outputs = {}
    for parent in stage.parents:
        marker = standing_marker(run.stage(parent))
        if marker is None:
            raise UserError(f"{stage.name} waits for {parent}, which is not finished: {run.stage(parent).done}")
        outputs[f"{parent}/out"] = {
            name: str(entry["sha256"])
            for name, entry in marker.outputs.items()
            if any(fnmatch(name, pattern) for pattern in stage.reads.get(parent, ("*",)))
        }
    return outputs


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What changed between the ingredients of two fingerprints, in words."""
    changes = []
    for kind in ("command", "code", "config", "packages", "inputs"):
        names = _changed(old.get(kind), new.get(kind))
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            changes.append(f"{kind} changed ({', '.join(names[:3])}{more})")
    return "; ".join(changes) or "nothing that is recorded changed"


def _changed(old: Any, new: Any, prefix: str = "") -> list[str]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if old == new:
            return []
        scalar = all(not isinstance(value, Mapping | list) and len(str(value)) < 40 for value in (old, new))
        return [f"{prefix}: {old} -> {new}" if scalar else prefix or "it"]
    found = []
    for key in sorted({*old, *new}, key=str):
        mark = "/" if "/" in f"{prefix}{key}" else "."
        dotted = f"{prefix}{mark}{key}" if prefix else str(key)
        found += _changed(old.get(key), new.get(key), dotted)
    return found
