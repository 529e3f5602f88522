"""Paths as people write them: `~`, patterns, hub ids. A path that no file can have is absent, and no traceback."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from hpcrl.config.seam import UserError


def user_path(text: str) -> Path:
    """The path with `~` expanded; where there is no such user or home it stays as it is written, as in a shell."""
    return Path(os.path.expanduser(text))


def root_path(text: str) -> Path:
    """The run root as an absolute path. Raises UserError for the home of a user that does not exist."""
    path = user_path(text)
    if path.parts[:1] and path.parts[0].startswith("~"):
        raise UserError(f"run_root: {text}: there is no user {path.parts[0][1:] or '(no home)'}; write the folder out")
    return Path(os.path.abspath(path))


def there(path: Path) -> bool:
    """Whether the path exists; False too where no file can have that name, or it cannot be looked at."""
    return os.path.exists(path)


def is_pattern(text: str) -> bool:
    return any(char in text for char in "*?[")


def matches(base: Path, text: str) -> list[Path]:
    """What stands at a path or a glob pattern, relative ones below `base`."""
    path = base / user_path(text)
    if there(path):
        return [path]
    if not is_pattern(text):
        return []
    folder = "" if user_path(text).is_absolute() else glob.escape(str(base)) + "/"
    return [Path(name) for name in sorted(glob.glob(folder + str(user_path(text)), recursive=True))]


def looks_like_path(text: str) -> bool:
    """Not a hub id (name or owner/name): it begins like a path, or has more parts."""
    return text.startswith(("/", ".", "~")) or text.count("/") > 1


def in_snapshot(path: Path, root: Path, files: Iterable[str]) -> str | None:
    """Where the code snapshot of `root` holds a file or all of a folder, relative to it; None when it does not."""
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(root))
    if relative.startswith(".."):
        return None
    kept = set(files)
    if path.is_file():
        return relative if relative in kept else None
    below = [os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(path) for name in names]
    wanted = [name for name in below if "__pycache__" not in name.split("/")]
    return relative if wanted and kept.issuperset(wanted) else None
