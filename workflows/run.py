"""A run on disk: its manifest, its stages, its folder among the others."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from hpcrl.config.seam import RunFolder, UserError
from workflows.hashing import sha256_text
from workflows.paths import user_path
from workflows.stages import Stage

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True)
class Run:
    """A run folder with its manifest read."""

    folder: RunFolder
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Run:
        """Raises UserError when there is no readable manifest."""
        return cls(RunFolder(path), read_manifest(path / "manifest.yaml"))

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def name(self) -> str:
        """experiment/run_id."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def run_root(self) -> Path:
        return self.path.parent.parent

    @property
    def config(self) -> Mapping[str, Any]:
        return self.manifest["config"]

    @cached_property
    def stages(self) -> list[Stage]:
        return [Stage.from_dict(raw) for raw in self.manifest["stages"]]

    def stage(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise UserError(f"{self.name} has no stage {name}; it has {', '.join(s.name for s in self.stages)}")

    @property
    def token(self) -> str:
        """Marks the run's processes; a copy of the folder elsewhere has another."""
        return sha256_text(f"{self.path.resolve()}\n{self.manifest['token']}")[:24]

    @property
    def driver(self) -> Path:
        """Who drives the run here: a ProcessId, in a file that the driver holds locked."""
        return self.path / "driver.json"

    @property
    def sessions(self) -> Path:
        """A line for each session that a supervisor led, to find what outlived it."""
        return self.path / "sessions.jsonl"


def read_manifest(path: Path) -> dict[str, Any]:
    """Raises UserError when it is missing or no manifest."""
    try:
        manifest = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    except FileNotFoundError:
        raise UserError(f"no manifest at {path}") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a manifest: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("config"), dict):
        raise UserError(f"{path} is no manifest: it has no config, or one that is no mapping of keys to values")
    return manifest


def dump_manifest(manifest: Mapping[str, Any]) -> str:
    return yaml.dump(dict(manifest), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def new_run_folder(run_root: Path, experiment: str) -> RunFolder:
    """Make a run folder that no other submission gets."""
    while True:
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        path = run_root / experiment / run_id
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if path.is_dir():
                continue
            raise UserError(f"cannot make {path}: a file is in the way; set run_root to another folder") from None
        except OSError as error:
            raise UserError(f"cannot make {path}: {error.strerror}; set run_root to a folder you can write") from None
        return RunFolder(path)


def point_latest(folder: RunFolder) -> None:
    """Make `latest` beside the run point to it, atomically."""
    link = folder.path.parent / "latest"
    temporary = folder.path.parent / f".latest.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.path.name)
    temporary.replace(link)


def all_runs(run_root: Path) -> list[Path]:
    """Run folders, oldest first."""
    manifests = (path for path in run_root.glob("*/*/manifest.yaml") if not path.parent.is_symlink())
    return sorted((path.parent for path in manifests), key=lambda path: (path.name, path.parent.name))


def find_run(run_root: Path, text: str) -> Run:
    """A run by its path, its id, or its experiment (the latest). Raises UserError that names what there is."""
    if text == "latest":
        raise UserError("RUN=latest: of which experiment? RUN=EXPERIMENT is its latest run")
    given = user_path(text)
    candidates = [given, given / "latest", run_root / text, run_root / text / "latest"]
    if "/" not in text:
        candidates += [path for path in all_runs(run_root) if path.name == text]
    found = sorted({path.resolve() for path in candidates if os.path.isfile(path / "manifest.yaml")})
    if len(found) > 1:
        raise UserError(f"RUN={text} may be any of {', '.join(map(str, found))}; give one of these paths")
    if found:
        return Run.open(found[0])
    runs = [f"{path.parent.name}/{path.name}" for path in all_runs(run_root)]
    there = f"the newest there: {', '.join(runs[-5:])}" if runs else "it holds no run yet"
    raise UserError(f"no run {text!r} under {run_root}; RUN is a path, a run id or an experiment; {there}")
