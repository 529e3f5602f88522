"""A Hugging Face data set: a folder in the hub's layout, or a hub id."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

from hpcrl.config.seam import UserError
from hpcrl.data.records import FORMATS
from hpcrl.data.sources.file import LocalFiles
from hpcrl.utils.hub import snapshot

SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class HuggingFace(LocalFiles):
    """Files are chosen by `split` (default: the name of our split) and `options.config`."""

    def find(self) -> list[Path]:
        if self.config.path is None:
            raise UserError(f"{self.where}.path: the source huggingface needs a folder or a hub id")
        folder = dataset_folder(self.config.path, self.options.revision, self.options.offline, self.where)
        return split_paths(folder, self.config.split or self.split, self.options.config, self.where)

    def default_data_source(self) -> str:
        return self.config.path or self.name


def dataset_folder(path: str, revision: str | None, offline: bool, where: str) -> Path:
    """A local folder or file, or the snapshot of a hub data set.

    Raises:
        UserError: neither there nor a hub id, unknown to the hub, or not in the cache when offline.
        InfrastructureError: the hub could not be reached.
    """
    local = Path(os.path.expanduser(path))
    if local.exists():
        return local
    if not HUB_ID.fullmatch(path) or path.startswith((".", "/", "~")):
        raise UserError(f"{where}.path: {path!r} is neither there nor a hub id (owner/name)")
    patterns = [f"*{suffix}" for suffix in FORMATS] + ["README.md"]
    return snapshot(
        path,
        f"{where}.path",
        repo_type="dataset",
        revision=revision,
        allow_patterns=patterns,
        local_files_only=offline,
    )


def split_paths(folder: Path, split: str, config: str | None, where: str) -> list[Path]:
    """The files of a split: as the folder's README declares them, else by the names of files and folders.

    Raises:
        UserError: no such configuration or split, or several configurations and none is chosen.
    """
    if folder.is_file():
        return [folder]
    declared = _declared(folder, split, config, where)
    if declared:
        return declared
    files = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in FORMATS and path.is_file()]
    files = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if config is not None:
        chosen = [path for path in files if config in _folders(path, folder)]
        folders = sorted({name for path in files for name in _folders(path, folder)})
        if not chosen and folders:
            raise UserError(f"{where}.options.config: {folder} has no folder {config!r}, only {', '.join(folders)}")
        files = chosen or files
    found = [path for path in files if _split_of(path.relative_to(folder)) == _canonical(split)]
    if not found and _canonical(split) == "train":
        found = [path for path in files if _split_of(path.relative_to(folder)) is None]
    if not found:
        there = sorted({_split_of(path.relative_to(folder)) or "train" for path in files})
        raise UserError(
            f"{where}: {folder} has no files of the split {split!r}; its splits: {', '.join(there) or 'none'}. "
            f"Choose one by {where}.split"
        )
    configs = sorted({"/".join(name for name in _folders(path, folder) if not _split_word(name)) for path in found})
    if len(configs) > 1:
        raise UserError(f"{where}.options.config: {folder} has several, choose one: {', '.join(configs)}")
    return found


def _folders(path: Path, root: Path) -> tuple[str, ...]:
    return path.relative_to(root).parts[:-1]


def _split_word(text: str) -> str | None:
    """The split that a name's words speak of."""
    words = re.split(r"[^A-Za-z]+", text.lower())
    return next((split for split, names in SPLIT_WORDS.items() if any(name in words for name in names)), None)


def _canonical(split: str) -> str:
    return next((name for name, words in SPLIT_WORDS.items() if split.lower() in words), split.lower())


def _split_of(relative: Path) -> str | None:
    """The split of a file: by its own name first, then by its folders."""
    for part in reversed(relative.parts):
        name = part.split(".")[0]
        word = _split_word(name)
        if word is not None:
            return word
        if re.fullmatch(r"[A-Za-z_]+-\d{5}-of-\d{5}", name):
            return name.split("-")[0].lower()
    return None


def _declared(folder: Path, split: str, config: str | None, where: str) -> list[Path]:
    """Files by `configs: [{config_name, data_files: [{split, path}]}]` in the head of the README."""
    configs = _readme_head(folder).get("configs") or []
    configs = [entry for entry in configs if isinstance(entry, dict) and entry.get("data_files")]
    if not configs:
        return []
    names = [str(entry.get("config_name", "default")) for entry in configs]
    if config is None:
        marked = [name for name, entry in zip(names, configs, strict=True) if entry.get("default")]
        config = (marked or [name for name in names if name == "default"] or names)[0]
        if len(names) > 1 and not marked and config != "default":
            raise UserError(f"{where}.options.config: {folder} has several, choose one: {', '.join(names)}")
    if config not in names:
        raise UserError(f"{where}.options.config: {folder} has no {config!r}, only {', '.join(names)}")
    found: dict[str, list[Path]] = {}
    data_files = configs[names.index(config)]["data_files"]
    for entry in data_files if isinstance(data_files, list) else [{"split": "train", "path": data_files}]:
        patterns = entry["path"] if isinstance(entry["path"], list) else [entry["path"]]
        found[str(entry["split"])] = sorted(path for pattern in patterns for path in folder.glob(pattern))
    for name, paths in found.items():
        if name == split or _canonical(name) == _canonical(split):
            return paths
    raise UserError(f"{where}: {folder} declares no split {split!r}, only {', '.join(found)}; choose by {where}.split")


def _readme_head(folder: Path) -> dict[str, Any]:
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return {}
    match = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    try:
        head = yaml.safe_load(match.group(1)) if match else None
    except yaml.YAMLError:
        return {}
    return head if isinstance(head, dict) else {}
