"""What a stage finds in its run folder."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class PromptFiles:
    """Parquet files of prompts."""

    train: list[Path]
    val: list[Path]


def prompt_files(folder: RunFolder, config: Config) -> PromptFiles:
    """What to train and to validate on: the files that the config names, else the prepare stage's."""
    from hpcrl.data import split_files

    data, prepared = config.data, "prepare" in config.workflow.stages
    train = [Path(file) for file in data.train_files] or split_files(folder, "train")
    val = [Path(file) for file in data.val_files]
    if not val and prepared and "test" in config.prepare.splits:
        val = split_files(folder, "test")
    return PromptFiles(train, val)
