"""A file far larger than a chunk goes through in bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from hpcrl.config.data import SourceConfig
from hpcrl.data.shard import LengthPolicy, ShardTask, ShardWriter
from hpcrl.data.sources import make_source
from hpcrl.data.tables import ParquetRows

ROWS = 200_000


class Words:
    """Measures prompts in words."""

    def lengths(self, prompts: list[list[dict[str, str]]]) -> list[int]:
        return [len(prompt[-1]["content"].split()) for prompt in prompts]

    def fingerprint(self) -> str:
        return "words"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_two_hundred_thousand_rows(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    with open(path, "w", encoding="utf-8") as file:
        file.write("prompt,ground_truth\n" if suffix == "csv" else "")
        for i in range(ROWS):
            row: dict[str, Any] = {"prompt": f"{i} " + "word " * 60, "ground_truth": str(i)}
            file.write(f"{row['prompt']},{i}\n" if suffix == "csv" else json.dumps(row) + "\n")
    size = path.stat().st_size
    tracemalloc.start()
    source = make_source(SourceConfig(source="file", path=str(path)), "train", 0, 0)
    rows = source.open()
    (tmp_path / "out").mkdir()
    policy = LengthPolicy(100, None, "refuse")
    task = ShardTask("train", 0, 1, 0, rows, (source,), (rows,), tmp_path / "out", policy)
    report = ShardWriter(Words(), None).write(task)  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.total("kept") == rows == ROWS
    assert size > 60e6
    assert peak < 25e6
    written = ParquetRows([tmp_path / "out" / task.name], {"prompt": "test"}, ["extra_info"])
    assert written[ROWS - 1]["extra_info"]["index"] == ROWS - 1
