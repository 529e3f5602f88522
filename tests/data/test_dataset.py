"""Prompts from parquet: columns, decoding, identities, the length policy at load time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from chat_fixture import TOOLS, prepare, tokenizer

from hpcrl.config import from_dict
from hpcrl.config.data import DataConfig
from hpcrl.config.seam import UserError
from hpcrl.data import tables
from hpcrl.data.dataset import PromptDataset
from hpcrl.data.lengths import PromptMeter, truncate_tokens
from hpcrl.data.loader import ResumableLoader
from hpcrl.protocol import DataProto
from hpcrl.trainer.ppo.reward import load_reward_manager


def row(index: int, content: str = "1+1?", **extra: Any) -> dict[str, Any]:
    """A row in verl's layout."""
    return {
        "data_source": "mine",
        "prompt": [{"role": "user", "content": content}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "train", "index": index, **extra},
    }


def dataset(path: Path | list[Path], measured: bool = True, max_samples: int = -1, **data: Any) -> PromptDataset:
    files = path if isinstance(path, list) else [path]
    return PromptDataset(files, DataConfig(**data), tokenizer() if measured else None, TOOLS, max_samples)


@pytest.mark.parametrize("writer", ["polars", "pyarrow"])
def test_rows_of_either_library(tmp_path: Path, writer: str) -> None:
    rows = [row(i, f"é\u2028{i}\U0001f600", tools_kwargs={"a": {"create_kwargs": {"x": i}}}) for i in range(5)]
    path = tmp_path / "x.parquet"
    pl.DataFrame(rows).write_parquet(path) if writer == "polars" else pq.write_table(pa.Table.from_pylist(rows), path)
    found = dataset(path, measured=False)
    assert len(found) == 5
    assert found[3] == {
        "raw_prompt": rows[3]["prompt"],
        "uid": "train/3",
        "data_source": "mine",
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": rows[3]["extra_info"],
        "agent_name": None,
    }


def test_identities_of_files_that_differ_in_their_layout(tmp_path: Path) -> None:
    plain = {key: value for key, value in row(0).items() if key != "extra_info"}
    split = pa.array(["a"]).dictionary_encode()
    infos = {
        "none": None,
        "text": pa.array(["x"]),
        "whole": pa.StructArray.from_arrays([split, pa.array([3], pa.int8())], ["split", "index"]),
        "partly": pa.array([{"split": None, "index": 1}]),
        "nested": pa.array([{"split": ["a"], "index": 1}]),
        "empty": pa.StructArray.from_arrays([split, pa.array([3], pa.int8())], ["split", "index"]),
        "null": pa.array([None], pa.struct({"split": pa.string(), "index": pa.int64()})),
    }
    files = []
    for name, info in infos.items():
        table = pa.Table.from_pylist([plain])
        table = table if info is None else table.append_column("extra_info", info)
        files.append(tmp_path / f"{name}.parquet")
        pq.write_table(table.slice(0, 0) if name == "empty" else table, files[-1])
    found = dataset(files, measured=False)
    assert found._uids == ["row/0", "row/1", "a/3", "row/3", "row/4", "row/5"]


def test_the_column_of_the_reward_stands_under_its_own_name_too(tmp_path: Path) -> None:
    rows = [{**row(0, "1+1?"), "scored_by": "exact_match"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    config = {"data": {"reward_fn_key": "scored_by"}}
    found = PromptDataset([tmp_path / "x.parquet"], from_dict(config).data, None)[0]
    assert (found["scored_by"], found["data_source"]) == ("exact_match", "exact_match")
    columns = {name: [found[name]] for name in ("scored_by", "data_source", "reward_model", "extra_info")}
    tokens = tokenizer()("2")["input_ids"]
    tensors = {"prompts": [tokens], "responses": [tokens], "attention_mask": [[1] * (2 * len(tokens))]}
    batch = DataProto.from_dict({k: torch.tensor(v) for k, v in tensors.items()}, columns)
    assert load_reward_manager(from_dict(config), tokenizer())(batch).sum() == 1.0


def test_what_prepare_wrote_comes_back_as_objects(tmp_path: Path) -> None:
    given = {
        "prompt": "1+1?",
        "ground_truth": {"any": ["2", "two"]},
        "tools_kwargs": {"calculator": {"create_kwargs": {"x": None}}},
        "metadata": {"deep": [{"a": 1}]},
    }
    plain = {"prompt": "2+2?", "ground_truth": 4}
    (tmp_path / "x.jsonl").write_text(json.dumps(given) + "\n" + json.dumps(plain) + "\n")
    card = prepare(tmp_path / "out", {"train": [{"source": "file", "path": str(tmp_path / "x.jsonl")}]})
    found = dataset([tmp_path / "out" / name for name in card["splits"]["train"]["files"]])
    assert found[0]["reward_model"]["ground_truth"] == given["ground_truth"]
    assert found[0]["extra_info"]["tools_kwargs"] == given["tools_kwargs"]
    assert found[0]["extra_info"]["metadata"] == given["metadata"]
    assert found[0]["extra_info"]["need_tools_kwargs"] is True
    assert (found[1]["reward_model"]["ground_truth"], found[1]["extra_info"]["tools_kwargs"]) == ("4", {})


def test_tools_kwargs_lose_the_nulls_that_parquet_fills_in(tmp_path: Path) -> None:
    rows = [row(0, tools_kwargs={"a": {"x": 1}, "b": None}), row(1, tools_kwargs={"a": None, "b": {"y": 2}})]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert [r["extra_info"]["tools_kwargs"] for r in map(dataset(tmp_path / "x.parquet").__getitem__, (0, 1))] == [
        {"a": {"x": 1}},
        {"b": {"y": 2}},
    ]


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist([row(0)]), path)
    with pytest.raises(UserError, match=r"x\.parquet has no column 'question' \(data\.prompt_key\); its columns: data"):
        dataset(path, prompt_key="question")
    with pytest.raises(UserError, match=r"no column 'kind' \(data\.reward_fn_key\)"):
        dataset(path, reward_fn_key="kind")
    pq.write_table(pa.Table.from_pylist([row(0)]).drop_columns(["reward_model"]), path)
    with pytest.raises(UserError, match="no column 'reward_model'"):
        dataset(path)
    with pytest.raises(UserError, match="no such file"):
        dataset(tmp_path / "gone.parquet")


def test_identities_are_unique(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.Table.from_pylist([row(0), row(1)]), tmp_path / f"{name}.parquet")
    both = dataset([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert [both[i]["uid"] for i in range(4)] == ["row/0", "row/1", "row/2", "row/3"]
    bare = [{key: value for key, value in row(0).items() if key != "extra_info"}] * 2
    pq.write_table(pa.Table.from_pylist(bare), tmp_path / "c.parquet")
    assert [dataset(tmp_path / "c.parquet")[i]["uid"] for i in range(2)] == ["row/0", "row/1"]


def test_files_of_different_schemas_and_empty_files(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([row(0)]), tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist([row(0)]).slice(0, 0), tmp_path / "b.parquet")
    pl.DataFrame([row(7, other=1.5)]).write_parquet(tmp_path / "c.parquet")
    found = dataset([tmp_path / f"{name}.parquet" for name in "bacb"])
    assert [found[i]["uid"] for i in range(len(found))] == ["train/0", "train/7"]


def test_overlong_prompts_at_load(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist([row(0), row(1, "word " * 90), row(2)]), path)
    with pytest.raises(UserError, match=r"1 of 3 prompts are longer than data.max_prompt_length = 64.*row 1: \d+ to"):
        dataset(path, max_prompt_length=64)
    filtered = dataset(path, max_prompt_length=64, filter_overlong_prompts=True)
    assert [filtered[i]["uid"] for i in range(len(filtered))] == ["train/0", "train/2"]
    assert filtered.dropped_overlong == 1
    assert len(dataset(path, max_prompt_length=64, truncation="right")) == 3
    assert len(dataset(path, max_prompt_length=64, max_samples=1)) == 1
    with pytest.raises(UserError, match="no prompt of"):
        dataset(path, max_prompt_length=3, filter_overlong_prompts=True)


def test_prepared_lengths_are_used_only_when_measured_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = prepare(tmp_path / "out", {"train": [{"source": "arithmetic", "rows": 20}]})
    files = [tmp_path / "out" / name for name in card["splits"]["train"]["files"]]
    longest = card["splits"]["train"]["prompt_tokens"]["max"]
    counted: list[int] = []
    count = PromptMeter.lengths
    monkeypatch.setattr(PromptMeter, "lengths", lambda self, p: counted.append(len(p)) or count(self, p))
    assert len(dataset(files, max_prompt_length=longest)) == 20
    with pytest.raises(UserError):
        dataset(files, max_prompt_length=longest - 1)
    assert counted == []
    PromptDataset(files, DataConfig(max_prompt_length=longest), tokenizer(), tools=None)
    assert counted == [20]


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    rows = [row(0), row(1)]
    rows[1]["prompt"] = [{"role": "user", "content": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"x\.parquet, row 1: prompt: a message's content is not text"):
        dataset(tmp_path / "x.parquet", measured=False)[1]


def test_a_large_file_is_mapped_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    with pq.ParquetWriter(path, pa.Table.from_pylist([row(0)]).schema) as writer:
        for start in range(0, 20_000, 1_000):
            writer.write_table(
                pa.Table.from_pylist([row(i, "text " * 40 + str(i)) for i in range(start, start + 1_000)])
            )
    small = dataset(path, measured=False)
    monkeypatch.setattr(tables, "IN_MEMORY_BYTES", 0)
    before = pa.total_allocated_bytes()
    mapped = dataset(path, measured=False)
    assert pa.total_allocated_bytes() - before < 1_000_000
    for index in (0, 4_095, 4_096, 19_999):
        assert mapped[index] == small[index]
    batch = next(ResumableLoader(mapped, 8, shuffle=True, seed=1))
    assert len(set(batch.non_tensor_batch["uid"])) == 8


def test_truncate_tokens() -> None:
    ids = list(range(7))
    assert truncate_tokens(ids, 7, "left") == ids
    assert truncate_tokens(ids, 3, "left") == [4, 5, 6]
    assert truncate_tokens(ids, 3, "right") == [0, 1, 2]
    assert truncate_tokens(ids, 3, "middle") == [0, 5, 6]
    assert truncate_tokens(ids, 4, "middle") == [0, 1, 5, 6]
