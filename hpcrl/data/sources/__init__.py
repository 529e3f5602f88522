"""Sources of prompts, one file each; a new one is a `Source` under its name in this table and in its options' table."""

from __future__ import annotations

import importlib

from hpcrl.config.data import SourceConfig
from hpcrl.config.sources import parse_options
from hpcrl.data.sources.base import RawRow, Source
from hpcrl.utils.seed import stable_key

SOURCES = {
    "arithmetic": "hpcrl.data.sources.arithmetic:Arithmetic",
    "reasoning_gym": "hpcrl.data.sources.reasoning_gym:ReasoningGym",
    "file": "hpcrl.data.sources.file:LocalFiles",
    "huggingface": "hpcrl.data.sources.huggingface:HuggingFace",
    "gsm8k": "hpcrl.data.sources.gsm8k:GSM8K",
    "math": "hpcrl.data.sources.math:Math",
}

__all__ = ["SOURCES", "RawRow", "Source", "make_source"]


def make_source(config: SourceConfig, split: str, position: int, run_seed: int) -> Source:
    """The source that a config asks for.

    Args:
        config: entry `position` of `prepare.splits.<split>`.
        run_seed: seed of the run; a generator's own seed is derived from it, the split and the position.

    Raises:
        UserError: unknown source or option.
    """
    where = f"prepare.splits.{split}.{position}"
    options = parse_options(config, where)
    module, name = SOURCES[config.source].split(":")
    cls = getattr(importlib.import_module(module), name)
    seed = config.seed if config.seed is not None else stable_key(run_seed, split, position) % 2**31
    return cls(config, options, split, seed, where)
