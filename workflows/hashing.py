"""Content hashes of files and folders, kept by inode, size and time of change, so that a large file is read once."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from hpcrl.config.seam import write_text

SMALL = 64 * 1024
SETTLED = 2.0
"""Seconds after which a file's time of change tells one content from the next; a younger one is not remembered."""


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


class ContentHashes:
    """Hashes of file contents, kept in a folder of small files that any number of processes may write at once."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def file(self, path: Path) -> str:
        """SHA-256 of the content; raises FileNotFoundError."""
        path = path.resolve()
        stat = path.stat()
        if stat.st_size <= SMALL:
            return _sha256(path)
        key = sha256_text(f"{stat.st_dev}\n{stat.st_ino}\n{stat.st_size}\n{stat.st_mtime_ns}")
        kept = self.store / key[:2] / key
        try:
            return kept.read_text()
        except FileNotFoundError:
            pass
        digest = _sha256(path)
        if time.time() - stat.st_mtime > SETTLED:
            write_text(kept, digest)
        return digest

    def tree(self, path: Path) -> dict[str, str]:
        """Hash of each file below a folder, by its relative path; of a file alone, by its name."""
        if path.is_file():
            return {path.name: self.file(path)}
        return {str(file.relative_to(path)): self.file(file) for file in files_below(path)}


def files_below(path: Path) -> list[Path]:
    """Regular files below a folder, links followed, sorted; names that begin with a dot are somebody's temporary."""
    found: list[Path] = []
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
    return sorted(file for file in found if file.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
