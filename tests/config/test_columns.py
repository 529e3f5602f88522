"""The instant check of parquet files, and names of tasks, against what stages find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcrl.config.columns import source_file_problems
from hpcrl.config.data import SourceConfig
from hpcrl.config.reasoning_gym import task_names


@pytest.mark.parametrize(
    ("columns", "source", "said"),
    [
        (["prompt", "ground_truth", "data_source"], {}, []),
        (["prompt", "reward_model"], {"data_source": "exact_match"}, []),
        (["messages"], {"data_source": "exact_match"}, []),
        (["q", "a.b"], {"columns": {"prompt": "q", "ground_truth": "a.b"}, "data_source": "exact_match"}, []),
        (["q", "ground_truth"], {}, ["has no column 'prompt'; its columns: q, ground_truth. Say which one holds it: "
                                     "prepare.splits.train.0.columns.prompt"]),
        (["prompt", "ground_truth"], {"columns": {"prompt": "q"}}, ["no column 'q' (prepare.splits.train.0.columns."]),
        (["x"], {}, ["has no column 'prompt'", "has no column 'ground_truth'"]),
        (["prompt", "ground_truth"], {}, ["train.0.data_source: ", "no reward rule for data_source 'file'"]),
    ],
)  # fmt: skip
def test_columns_of_a_parquet_file(columns: list[str], source: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({name: ["1"] for name in columns}), file)
    config = SourceConfig(source="file", path=str(file), **source)
    found = "\n".join(source_file_problems(config, "prepare.splits.train.0", file, scored=True))
    assert all(words in found for words in said) and bool(found) == bool(said)


def test_other_files_are_left_to_the_stage(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text("{}")
    assert not list(source_file_problems(SourceConfig(source="file"), "s", file, scored=True))
    assert not list(source_file_problems(SourceConfig(source="gsm8k"), "s", tmp_path / "x.parquet"))
    broken = tmp_path / "broken.parquet"
    broken.write_text("no")
    (problem,) = source_file_problems(SourceConfig(source="file"), "s", broken)
    assert problem.startswith(f"s.path: {broken} is no parquet file that can be read")


def test_task_names_are_those_of_the_registry() -> None:
    import reasoning_gym  # fills the registry
    from reasoning_gym.factory import DATASETS

    assert reasoning_gym.__name__ and set(task_names()) == set(DATASETS)
