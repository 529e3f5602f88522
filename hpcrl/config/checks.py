"""Checks across fields: what each option alone allows, but not together. No file is touched here."""

from __future__ import annotations

from hpcrl.config.schema import Config


def check(config: Config) -> None:
    """Raise ConfigError with everything that cannot work together."""
