"""A file far larger than a chunk goes through in bounded memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

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


def task_of(path: Path, rows: int | None) -> ShardTask:
    source = make_source(SourceConfig(source="file", path=str(path)), "train", 0, 0)
    count = min(source.open(), rows or ROWS)
    policy = LengthPolicy(100, None, "refuse")
    return ShardTask("train", 0, 1, 0, count, (source,), (count,), path.parent / "out", policy)


def peak_while_preparing(path: Path) -> int:
    """MB by which memory grew beyond what a few thousand rows take."""
    writer = ShardWriter(Words(), None)  # type: ignore[arg-type]
    writer.write(task_of(path, rows=4_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert writer.write(task_of(path, rows=None)).total("kept") == ROWS
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_two_hundred_thousand_rows(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    text = "word " * 80
    with open(path, "w", encoding="utf-8") as file:
        file.write("prompt,ground_truth\n" if suffix == "csv" else "")
        for i in range(ROWS):
            line = f"{i} {text},{i}" if suffix == "csv" else json.dumps({"prompt": f"{i} {text}", "ground_truth": i})
            file.write(line + "\n")
    (tmp_path / "out").mkdir()
    code = f"from test_memory import *; print(peak_while_preparing(Path({str(path)!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert path.stat().st_size > 80e6
    assert int(done.stdout) < 40
    name = "train-00000-of-00001.parquet"
    written = ParquetRows([tmp_path / "out" / name], {"prompt": "test"}, ["extra_info"])
    assert written[ROWS - 1]["extra_info"]["index"] == ROWS - 1
