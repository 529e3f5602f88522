"""A tokenizer and tools for the tests of this folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from hpcrl.config import Config, from_dict
from hpcrl.config.model import TinyModelConfig
from hpcrl.data.pipeline import Preparation

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluates an expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]


@cache
def tokenizer() -> Any:
    from hpcrl.models.tiny import build_tokenizer

    return build_tokenizer(TinyModelConfig())


def config_of(splits: dict[str, Any], *, data: dict[str, Any] | None = None, **prepare: Any) -> Config:
    return from_dict({"prepare": {"splits": splits, **prepare}, "data": data or {}})


def prepare(
    out: Path, splits: dict[str, Any], *, data: dict[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """Prepare the splits into `out`; returns the card."""
    config = config_of(splits, data=data, **settings)
    return Preparation(config, out, tokenizer, out.parent / "workers", TOOLS).run()


def rows_of(out: Path, card: dict[str, Any], split: str) -> list[dict[str, Any]]:
    """All rows of a split as parquet holds them."""
    import pyarrow.parquet as pq

    return [row for name in card["splits"][split]["files"] for row in pq.read_table(out / name).to_pylist()]
