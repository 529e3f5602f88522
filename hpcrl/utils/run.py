"""What a stage finds in its run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from hpcrl.config import Config, from_dict
from hpcrl.config.seam import RunFolder, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_config(folder: RunFolder) -> Config:
    """The resolved config of the run, from its manifest."""
    try:
        manifest = yaml.safe_load(folder.manifest.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no manifest.yaml in {folder.path}: run_dir must be a run folder made by `submit`") from None
    return from_dict(manifest["config"])


def initial_model_path(folder: RunFolder, config: Config) -> str:
    """The model that RL starts from: what sft made, else what fetch brought, else `model.path`."""
    for stage in ("sft", "fetch"):
        if stage in config.workflow.stages:
            return str(folder.stage(stage).out / "model")
    return _given_model_path(config)


def base_model_path(folder: RunFolder, config: Config) -> str | None:
    """The model that sft starts from: what fetch brought, else `model.path`; None: a tiny one is to be made."""
    if "fetch" in config.workflow.stages:
        return str(folder.stage("fetch").out / "model")
    return config.actor_rollout_ref.model.path


def load_run_tokenizer(folder: RunFolder, config: Config) -> PreTrainedTokenizerBase:
    """The tokenizer of the run's model; built in memory when the model is a tiny one made from scratch."""
    from hpcrl.models.tiny import build_tokenizer
    from hpcrl.utils.tokenizer import hf_tokenizer

    model = config.actor_rollout_ref.model
    path = model.tokenizer_path or base_model_path(folder, config)
    if path is not None:
        return hf_tokenizer(path, trust_remote_code=model.trust_remote_code)
    if model.tiny is None:
        _given_model_path(config)
        raise AssertionError("unreachable: _given_model_path raises without a path")
    return build_tokenizer(model.tiny)


def _given_model_path(config: Config) -> str:
    path = config.actor_rollout_ref.model.path
    if path is None:
        raise UserError(
            "actor_rollout_ref.model.path is not set: give a model folder or hub id, "
            "or actor_rollout_ref.model.tiny together with the sft stage"
        )
    return path


def train_files(folder: RunFolder, config: Config) -> list[Path]:
    """What to train on: the files that the config names, else the prepare stage's `train` split."""
    from hpcrl.data import split_files

    return [Path(file) for file in config.data.train_files] or split_files(folder, "train")


def val_files(folder: RunFolder, config: Config) -> list[Path]:
    """What to validate on: the files that the config names, else the prepare stage's `test` split, else nothing."""
    from hpcrl.data import split_files

    files = [Path(file) for file in config.data.val_files]
    if not files and "prepare" in config.workflow.stages and "test" in config.prepare.splits:
        return split_files(folder, "test")
    return files
