"""Outputs that several runs share: `<run_root>/.cache/<fingerprint>/`, published and taken whole."""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from dataclasses import replace
from pathlib import Path

from hpcrl.config.seam import StageFolder
from workflows.completion import Marker, damage, read_marker, write_marker
from workflows.hashing import ContentHashes, files_below

logger = logging.getLogger(__name__)

ABANDONED = 24 * 3600.0
"""Seconds after which an unfinished entry is nobody's."""


class Cache:
    """Entries are folders `<fingerprint>/{DONE,out/}` that appear by a rename and are never written to again."""

    def __init__(self, run_root: Path) -> None:
        self.root = run_root / ".cache"
        self.hashes = ContentHashes(self.root / "hashes")

    def lock_file(self, stage: str, key: str) -> Path:
        """The file that a job holds locked while it makes what others may wait for."""
        return self.root / "locks" / f"{stage}-{key[:16]}"

    def publish(self, marker: Marker, out: Path) -> None:
        """Offer finished outputs to other runs; when another run was first, its entry stays."""
        entry = self.root / marker.fingerprint
        if entry.exists():
            return
        temporary = self._temporary()
        _copy_tree(out, temporary / "out", list(marker.outputs))
        write_marker(temporary / "DONE", marker)
        try:
            temporary.rename(entry)
        except OSError:
            if not entry.exists():
                raise
            shutil.rmtree(temporary)

    def take(self, fingerprint: str, stage: StageFolder) -> Marker | None:
        """Put an entry's outputs into a stage, DONE last; None when there is none. A damaged one is set aside."""
        entry = self.root / fingerprint
        marker = read_marker(entry / "DONE")
        if marker is None:
            if entry.exists():
                self._set_aside(entry, "its DONE cannot be read")
            return None
        trouble = damage(marker, entry / "out", self.hashes)
        if trouble:
            self._set_aside(entry, trouble)
            return None
        shutil.rmtree(stage.out, ignore_errors=True)
        _copy_tree(entry / "out", stage.out, list(marker.outputs))
        taken = replace(marker, attempt=None)
        write_marker(stage.done, taken)
        return taken

    def newest(self, stage: str) -> Marker | None:
        """The newest entry of a stage, whatever its fingerprint."""
        markers = [read_marker(done) for done in self.root.glob("*/DONE")]
        return max((m for m in markers if m and m.stage == stage), key=lambda m: m.finished, default=None)

    def _temporary(self) -> Path:
        for old in self.root.glob("unfinished/*"):  # of jobs that were killed while they published
            if time.time() - old.stat().st_mtime > ABANDONED:
                shutil.rmtree(old, ignore_errors=True)
        folder = self.root / "unfinished" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return folder

    def _set_aside(self, entry: Path, reason: str) -> None:
        away = self.root / "damaged" / f"{entry.name}-{uuid.uuid4().hex[:8]}"
        away.parent.mkdir(parents=True, exist_ok=True)
        try:
            entry.rename(away)
        except FileNotFoundError:  # another run was quicker
            return
        logger.warning("the cached outputs %s are damaged (%s); moved to %s", entry.name[:12], reason, away)


def _copy_tree(source: Path, target: Path, names: list[str]) -> None:
    """Hard links where the file system has them: outputs are replaced whole, never changed in place."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names or [str(file.relative_to(source)) for file in files_below(source)]:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link((source / name).resolve(), place)
        except OSError:
            shutil.copy2(source / name, place)
