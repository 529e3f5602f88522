"""The code of a run: what stood in the project when it was submitted, so that a queued job never sees later edits."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from hpcrl.config.seam import UserError
from workflows.hashing import sha256_text

logger = logging.getLogger(__name__)

PROJECT_ROOT = Path(__file__).resolve().parents[1]
LARGEST = 10 * 1024 * 1024
"""Bytes of one file that is still code."""
NOT_CODE = {"__pycache__", "build", "dist", "outputs", "runs", "wandb", "node_modules"}
"""Folders that are left out where git cannot say what is ignored."""
SECRET = (".env*", "*.pem", ".netrc", "id_*")
"""Names of files that hold keys and passwords; they are never copied, nor shown in the diff."""
DIFF = "code.diff"
"""File beside the manifest that holds the uncommitted changes."""


@dataclass(frozen=True)
class Git:
    """State of the project's repository; without one all is empty."""

    commit: str | None = None
    branch: str | None = None
    diff: bytes = field(default=b"", repr=False)
    untracked: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {
            "commit": self.commit,
            "branch": self.branch,
            "dirty": bool(self.diff or self.untracked),
            "untracked": [_readable(name) for name in self.untracked],
            "diff": DIFF if self.diff else None,
        }


def code_files(root: Path = PROJECT_ROOT, leave_out: Path | None = None) -> list[str]:
    """Relative paths of the project's files: tracked, changed, and untracked but not ignored; `leave_out` is a folder.

    Where git is absent, or ignores the whole project (a copy inside another repository), the folder is walked.
    Raises UserError that names each file over 10 MB.
    """
    names = _git_files(root) or _walked_files(root)
    kept = sorted(name for name in names if not _below(root / name, leave_out) and (root / name).is_file())
    kept = [name for name in kept if not is_secret(name)]
    large = [name for name in kept if (root / name).stat().st_size > LARGEST]
    if large:
        sizes = ", ".join(f"{name} ({(root / name).stat().st_size / 1e6:.0f} MB)" for name in large)
        raise UserError(
            f"too large for the code snapshot (10 MB a file): {sizes}; move it away or list it in .gitignore"
        )
    return kept


def snapshot_files(root: Path) -> list[str]:
    """Relative paths of everything in the code of a run: it was chosen when that was submitted, and git has no say."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [str(Path(folder, name).relative_to(root)) for name in names if not name.endswith((".pyc", ".pyo"))]
    return sorted(found)


def is_secret(name: str) -> bool:
    """Whether a file's name says that it holds keys; `id_*.py` is code."""
    last = name.rpartition("/")[2]
    return any(fnmatch(last, pattern) for pattern in SECRET) and not last.endswith(".py")


def copy_code(root: Path, names: list[str], target: Path) -> None:
    """Copy the files; a link becomes the file that it points to."""
    for name in names:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, place)


def code_hash(root: Path, names: list[str]) -> str:
    """One hash of all the code, in the manifest to tell two submissions apart."""
    files = {name: sha256_text((root / name).read_bytes().decode("utf-8", "surrogateescape")) for name in names}
    return sha256_text("\n".join(f"{name} {digest}" for name, digest in sorted(files.items())))[:40]


def git_state(root: Path = PROJECT_ROOT) -> Git:
    """Commit, branch and uncommitted changes."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return Git()
    untracked = _git(root, "ls-files", "-z", "--others", "--exclude-standard") or ""
    changed = (_git(root, "diff", "HEAD", "--name-only", "--relative", "-z") or "").split("\0")
    shown = [".", *(f":(exclude,literal){name}" for name in changed if is_secret(name))]
    diff = _git(root, "diff", "HEAD", "--no-color", "--no-ext-diff", "--binary", "--", *shown) or ""
    return Git(
        commit=commit.strip(),
        branch=(_git(root, "rev-parse", "--abbrev-ref", "HEAD") or "").strip(),
        diff=diff.encode("utf-8", "surrogateescape"),
        untracked=tuple(sorted(name for name in untracked.split("\0") if name)),
    )


def _readable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _git_files(root: Path) -> list[str] | None:
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return None if listed is None else sorted({name for name in listed.split("\0") if name})


def _git(root: Path, *arguments: str) -> str | None:
    environment: Mapping[str, str] = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return None
    if done.returncode != 0:
        logger.debug("%s: %s", " ".join(command), done.stderr.decode(errors="replace").strip())
        return None
    return done.stdout.decode("utf-8", "surrogateescape")


def _walked_files(root: Path) -> list[str]:
    """Without git: all files but hidden folders, environments, caches and what is built."""
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if _holds_code(Path(folder, name))]
        found += [str(Path(folder, name).relative_to(root)) for name in names if not name.endswith((".pyc", ".pyo"))]
    return found


def _holds_code(folder: Path) -> bool:
    hidden = folder.name.startswith(".") and folder.name != ".ci"
    built = folder.name in NOT_CODE or folder.name.endswith(".egg-info") or (folder / "pyvenv.cfg").exists()
    return not (hidden or built)


def _below(path: Path, folder: Path | None) -> bool:
    return folder is not None and path.absolute().is_relative_to(folder)
