"""The completion marker DONE: written last, and worth only as much as the content beside it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcrl.config.seam import StageFolder, write_json
from workflows.hashing import ContentHashes, files_below


@dataclass(frozen=True)
class Marker:
    """What DONE holds."""

    stage: str
    fingerprint: str
    outputs: Mapping[str, Mapping[str, Any]]
    """Path below out/ to its size and SHA-256."""
    ingredients: Mapping[str, Any] = field(default_factory=dict)
    """What the fingerprint was made of, to say what changed."""
    attempt: int | None = None
    """The attempt that made the outputs; None: they came from the cache."""
    finished: float = field(default_factory=time.time)
    """Epoch seconds."""


def read_marker(path: Path) -> Marker | None:
    """The marker in a DONE file; None when there is none, or when it cannot be read."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Marker(**raw)
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError, TypeError):
        return None


def write_marker(path: Path, marker: Marker) -> None:
    write_json(path, asdict(marker))


def describe_outputs(out: Path, hashes: ContentHashes) -> dict[str, dict[str, Any]]:
    """Size and hash of every file below out/."""
    return {
        str(file.relative_to(out)): {"size": file.stat().st_size, "sha256": hashes.file(file)}
        for file in files_below(out)
    }


def missing_outputs(out: Path, wanted: tuple[str, ...]) -> list[str]:
    """The outputs that a stage promises and that are not there, or are empty folders."""
    return [name for name in wanted if not ((out / name).is_file() or files_below(out / name))]


def damage(marker: Marker, out: Path, hashes: ContentHashes | None) -> str | None:
    """What is wrong with the content beside a marker; None when all is there. Without `hashes` sizes alone are read."""
    for name, entry in marker.outputs.items():
        file = out / name
        if not file.is_file():
            return f"out/{name} is missing"
        if file.stat().st_size != entry["size"]:
            return f"out/{name} has {file.stat().st_size} bytes, not {entry['size']}"
        if hashes and hashes.file(file) != entry["sha256"]:
            return f"out/{name} has other content than when it was finished"
    return None


def standing_marker(stage: StageFolder) -> Marker | None:
    """The marker of a stage whose outputs stand beside it, by their sizes."""
    marker = read_marker(stage.done)
    return marker if marker and damage(marker, stage.out, None) is None else None
