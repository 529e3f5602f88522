"""Between the typed config and plain dicts, as a manifest holds them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hpcrl.config.aliases import apply_aliases
from hpcrl.config.checks import check
from hpcrl.config.messages import ConfigError, describe_all
from hpcrl.config.refusals import refuse
from hpcrl.config.schema import Config

_ADAPTER: TypeAdapter[Config] = TypeAdapter(Config)


def from_dict(raw: Mapping[str, Any]) -> Config:
    """A config of plain nested dicts: other spellings read, keys, types and values validated. No cross-field checks.

    Raises ConfigError with every problem found.
    """
    values = copy.deepcopy(dict(raw))
    problems = apply_aliases(values)
    problems += refuse(values)
    config: Config | None = None
    try:
        config = _ADAPTER.validate_python(values)
    except ValidationError as failure:
        problems += describe_all(failure)
    if config is None or problems:
        raise ConfigError(problems)
    return config


def as_config(value: Any, *, complete: bool = True) -> Config:
    """A config in whatever form it is given.

    Args:
        value: a Config, which is taken as it is; an OmegaConf DictConfig, whose interpolations are resolved; or a
            mapping of plain nested dicts.
        complete: also make the checks across fields, for a whole run's config; false: what is not given has its
            default, and nothing more is asked.

    Raises:
        ConfigError: unknown keys, values that do not fit, or (when complete) options that do not go together.
    """
    if isinstance(value, Config):
        return value
    if not isinstance(value, dict):
        from omegaconf import DictConfig, OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        if isinstance(value, DictConfig):
            try:
                value = OmegaConf.to_container(value, resolve=True)
            except OmegaConfBaseException as error:
                raise ConfigError(f"an interpolation cannot be resolved: {str(error).splitlines()[0]}") from error
        elif not isinstance(value, Mapping):
            raise ConfigError(f"a Config, a DictConfig or a mapping is needed, not {type(value).__name__}")
    config = from_dict(value)
    if complete:
        check(config)
    return config


def to_dict(config: Config) -> dict[str, Any]:
    """The whole config, defaults included, as dicts, lists and scalars that YAML and JSON can hold."""
    return dict(_ADAPTER.dump_python(config, mode="json"))
