"""Between the typed config and plain dicts, as a manifest holds them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hpcrl.config.aliases import apply_aliases
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


def to_dict(config: Config) -> dict[str, Any]:
    """The whole config, defaults included, as dicts, lists and scalars that YAML and JSON can hold."""
    return dict(_ADAPTER.dump_python(config, mode="json"))
