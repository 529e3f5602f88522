"""From an experiment's name and overrides to a validated config: Hydra composes the YAML, pydantic checks it.

The YAML under `configs/` holds only what differs from the dataclasses' defaults.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hpcrl.config.aliases import lookup, present, put
from hpcrl.config.checks import check
from hpcrl.config.convert import from_dict
from hpcrl.config.keys import accepts_text, annotation_at, nearest
from hpcrl.config.messages import ConfigError, offer, shown
from hpcrl.config.schema import Config

PROJECT_ROOT = Path(__file__).resolve().parents[2]
CONFIG_DIR = PROJECT_ROOT / "configs"


def compose(
    overrides: Sequence[str] = (), *, base: Mapping[str, Any] | None = None, config_dir: Path | None = None
) -> Config:
    """The config of `configs/config.yaml`, an experiment (`exp=NAME`) and overrides (`key=value`), checked.

    `+key=` and `++key=` mean `key=`; `~key` goes back to the default. A value of a text option is taken as it is
    typed, so paths need no quotes. The environment variable RUN_ROOT sets `run_root` where no override does.
    `base`: start from this dict (a manifest's config) in place of the YAML; no `exp=` then.
    Touches no files but the YAML, and no hardware. Raises ConfigError with every problem found.
    """
    folder = config_dir or CONFIG_DIR
    groups = _groups(folder)
    problems: list[str] = []
    selected: dict[str, str] = {}
    plain: list[Override] = []
    for text in overrides:
        try:
            override = parse_override(text)
        except ConfigError as error:
            problems += error.problems
            continue
        if override.key_or_group in groups:
            selected[override.key_or_group] = str(override.value() or "")
        else:
            plain.append(override)
    problems += _unknown_choices(folder, groups, selected)
    if base is not None and selected:
        problems.append(f"{', '.join(selected)}: cannot be chosen on top of a given config")
    if problems:
        raise ConfigError(problems)
    raw = copy.deepcopy(dict(base)) if base is not None else _yaml(folder, selected)
    raw = _overridden(raw, plain)
    _context_defaults(raw, selected.get("exp"), [o.key_or_group for o in plain])
    config = from_dict(raw)
    check(config)
    return config


def experiments(config_dir: Path | None = None) -> list[str]:
    """Names that `exp=` takes."""
    return _choices(config_dir or CONFIG_DIR, "exp")


def parse_override(text: str) -> Override:
    """One override in Hydra's grammar; a text option's value, and one that Hydra cannot read, is taken as typed."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals and not key.startswith("~"):
        raise ConfigError(f"cannot read the override {shown(text)}; write key=value, or ~key for the default")
    annotation = annotation_at(key.lstrip("+~").split("."))
    if equals and annotation is not None and accepts_text(annotation) and _plain_text(value):
        text = f"{key}={_quoted(value)}"
    for attempt in (text, f"{key}={_quoted(value)}"):
        try:
            override = OverridesParser.create().parse_override(attempt)
        except HydraException:
            continue
        if override.is_sweep_override():  # one config has one value; what looks like several is text to be validated
            continue
        return override
    raise ConfigError(f"cannot read the override {shown(text)}; write key=value with a key like trainer.total_epochs")


def _plain_text(value: str) -> bool:
    """False for null, a list, an interpolation or a value that stands in quotes already."""
    stripped = value.strip()
    quoted = len(stripped) > 1 and stripped[0] == stripped[-1] and stripped[0] in "'\""
    return not (stripped in ("null", "") or quoted or "${" in value or stripped.startswith("["))


def _quoted(value: str) -> str:
    """A value in Hydra's single quotes, where a backslash counts only before a quote or at the end."""
    out, backslashes = [], 0
    for char in value:
        if char == "'":
            out.append("\\" * backslashes + "\\")
        backslashes = backslashes + 1 if char == "\\" else 0
        out.append(char)
    return "'" + "".join(out) + "\\" * backslashes + "'"


def _groups(folder: Path) -> list[str]:
    """The config groups that config.yaml chooses from, in its defaults list."""
    listed = OmegaConf.select(OmegaConf.load(folder / "config.yaml"), "defaults") or []
    return [str(name).removeprefix("optional ") for item in listed if isinstance(item, DictConfig) for name in item]


def _choices(folder: Path, group: str) -> list[str]:
    return sorted(path.stem for path in (folder / group).glob("*.yaml"))


def _unknown_choices(folder: Path, groups: list[str], selected: Mapping[str, str]) -> list[str]:
    problems = []
    for group in groups:
        name, known = selected.get(group), _choices(folder, group)
        if name and name not in known:
            what = "experiment" if group == "exp" else group
            close = offer(nearest(name, known, cutoff=0.4))
            problems.append(f"{group}={name}: unknown {what}; known: {', '.join(known) or 'none'}{close}")
    return problems


def _yaml(folder: Path, selected: Mapping[str, str]) -> dict[str, Any]:
    choices = [f"{group}={name}" for group, name in selected.items() if name]
    try:
        with initialize_config_dir(config_dir=str(folder.resolve()), version_base=None, job_name="hpcrl"):
            composed = hydra_compose(config_name="config", overrides=choices)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        where = " ".join(choices) or "config.yaml"
        raise ConfigError(f"{where}: the YAML under {folder} cannot be composed: {error}") from error
    return _container(composed)


def _overridden(raw: dict[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """Apply `key=value` and `~key` in their order; the schema, not the YAML, decides which keys exist."""
    tree = OmegaConf.create(raw)
    for override in overrides:
        key = override.key_or_group
        if not override.is_delete():
            value = override.value()
            try:
                OmegaConf.update(tree, key, value, merge=isinstance(value, dict), force_add=True)
            except (OmegaConfBaseException, TypeError, ValueError, IndexError) as error:
                raise ConfigError(f"{override.input_line}: cannot be set: {str(error).splitlines()[0]}") from error
            continue
        parent, _, last = key.rpartition(".")
        holder = OmegaConf.select(tree, parent) if parent else tree
        if isinstance(holder, DictConfig) and last in holder:
            del holder[last]
        elif annotation_at(key.split(".")) is None:
            raise ConfigError(f"~{key}: unknown key, there is nothing to delete")
    return _container(tree)


def _container(tree: DictConfig) -> dict[str, Any]:
    try:
        raw = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"an interpolation cannot be resolved: {str(error).splitlines()[0]}") from error
    assert isinstance(raw, dict)
    return {str(key): value for key, value in raw.items()}


def _context_defaults(raw: dict[str, Any], experiment: str | None, overridden: Sequence[str]) -> None:
    """What the surroundings set: RUN_ROOT the run root, the experiment's name the name of its folder."""
    run_root = os.environ.get("RUN_ROOT")
    if run_root and "run_root" not in overridden:
        raw["run_root"] = run_root
    if experiment and not present(lookup(raw, "trainer.experiment_name")):
        put(raw, "trainer.experiment_name", experiment)
