"""The prepare pipeline: nothing lost, the same result however it is cut, faults refused by name."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from chat_fixture import config_of, prepare, rows_of, tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcrl.config.seam import InfrastructureError, RunFolder, StopRequested, UserError
from hpcrl.data import fan_out, split_files
from hpcrl.data.pipeline import Preparation


def write_lines(path: Path, rows: list[Any]) -> dict[str, Any]:
    """A source of these rows; text is written as it stands."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return {"source": "file", "path": str(path), "data_source": "test/file"}


GOOD = {"prompt": "1+1?", "ground_truth": "2"}


def test_shards_card_and_files(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    out = run.stage("prepare").out
    splits = {
        "train": [{"source": "arithmetic", "rows": 50}, {"source": "arithmetic", "rows": 20}],
        "sft": [{"source": "arithmetic", "rows": 30, "options": {"demonstrations": True}}],
    }
    card = prepare(out, splits, rows_per_shard=32)
    assert [path.name for path in split_files(run, "train")] == [f"train-{i:05d}-of-00003.parquet" for i in range(3)]
    assert json.loads((out / "dataset_card.json").read_text()) == json.loads(json.dumps(card))
    train = card["splits"]["train"]
    assert (train["rows"], train["read"], train["bad"]["rows"], train["dropped"]["overlong"]) == (70, 70, 0, 0)
    assert [source["kept"] for source in train["sources"]] == [50, 20]
    rows = rows_of(out, card, "train")
    assert [row["extra_info"]["index"] for row in rows] == list(range(70))
    lengths = [row["extra_info"]["prompt_tokens"] for row in rows]
    assert (train["prompt_tokens"]["min"], train["prompt_tokens"]["max"]) == (min(lengths), max(lengths))
    assert sum(bar["rows"] for bar in train["prompt_tokens"]["histogram"]) == 70
    assert {str(pq.read_schema(path)) for path in split_files(run, "train")} == {
        str(pq.read_schema(split_files(run, "train")[0]))
    }
    assert pl.read_parquet(split_files(run, "sft"))["messages"].list.len().min() == 2  # polars reads them, too
    assert "| sft | 30 | 30 |" in (out / "dataset_card.md").read_text()
    assert not list(out.glob(".*"))
    with pytest.raises(UserError, match="made no split 'test', only train, sft"):
        split_files(run, "test")
    split_files(run, "train")[1].unlink()
    with pytest.raises(UserError, match=r"train-00001-of-00003\.parquet of split 'train' is missing"):
        split_files(run, "train")


def test_no_card_is_no_split(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the prepare stage has not finished"):
        split_files(RunFolder(tmp_path), "train")


ROWS = st.lists(
    st.sampled_from(
        [
            GOOD,
            {"prompt": "é \U0001f600 \u2028 x", "ground_truth": "y"},
            {"prompt": "", "ground_truth": "2"},
            {"prompt": "x " * 60, "ground_truth": "2"},
            {"prompt": None, "ground_truth": None},
            {"other": 1},
            "{ not json",
            "[]",
        ]
    ),
    max_size=25,
)


@given(rows=ROWS, size=st.integers(1, 30))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_row_is_lost_and_sharding_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], size: int
) -> None:
    folder = tmp_path_factory.mktemp("laws")
    source = write_lines(folder / "rows.jsonl", [GOOD, *rows])
    data = {"max_prompt_length": 60, "filter_overlong_prompts": True}
    cards = [
        prepare(folder / f"out{n}", {"train": [source]}, data=data, rows_per_shard=n, max_bad_fraction=1.0)
        for n in (size, 100)
    ]
    for card in cards:
        split = card["splits"]["train"]
        assert split["read"] == 1 + len(rows)
        assert split["read"] == split["rows"] + split["dropped"]["overlong"] + split["bad"]["rows"]
        assert split["bad"]["rows"] == sum(split["bad"]["reasons"].values())
    kept = [rows_of(folder / f"out{n}", card, "train") for n, card in zip((size, 100), cards, strict=True)]
    assert kept[0] == kept[1]
    assert {**cards[0]["splits"]["train"], "files": 0} == {**cards[1]["splits"]["train"], "files": 0}


def test_another_row_is_another_content_hash(tmp_path: Path) -> None:
    def content(name: str, rows: list[Any]) -> str:
        card = prepare(tmp_path / name, {"train": [write_lines(tmp_path / f"{name}.jsonl", rows)]})
        return card["splits"]["train"]["content_hash"]

    other = {"prompt": "2+2?", "ground_truth": "4"}
    assert content("a", [GOOD, other]) == content("b", [GOOD, other])
    assert len({content("c", [GOOD, other]), content("d", [other, GOOD]), content("e", [GOOD])}) == 3


def test_bad_rows_are_reported_with_their_place(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "x.jsonl", [GOOD, "{", *[GOOD] * 20, {"prompt": " ", "ground_truth": "1"}])
    card = prepare(tmp_path / "out", {"train": [source]})
    assert card["splits"]["train"]["bad"]["examples"] == [
        (f"{tmp_path}/x.jsonl:2", "not JSON (Expecting property name enclosed in double quotes)"),
        (f"{tmp_path}/x.jsonl:23", "prompt: empty"),
    ]
    assert f"{tmp_path}/x.jsonl:23: prompt: empty" in (tmp_path / "out" / "dataset_card.md").read_text()


def test_too_many_bad_rows_are_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "x.jsonl", [GOOD] * 8 + ["{"] * 2)
    with pytest.raises(UserError, match=r"2 of 10 rows are bad, more than prepare.max_bad_fraction = 0.1.*x\.jsonl:9"):
        prepare(tmp_path / "out", {"train": [source]})


LONG = {"prompt": "word " * 100, "ground_truth": "2"}


def test_overlong_prompts_follow_the_policy(tmp_path: Path) -> None:
    splits = {"train": [write_lines(tmp_path / "x.jsonl", [GOOD, LONG, GOOD])]}
    limit = {"max_prompt_length": 64}
    with pytest.raises(
        UserError, match=r"1 of 3 rows are longer than data.max_prompt_length = 64.*x\.jsonl:2: \d+ tok"
    ):
        prepare(tmp_path / "refuse", splits, data=limit)
    dropped = prepare(tmp_path / "drop", splits, data={**limit, "filter_overlong_prompts": True})["splits"]["train"]
    assert (dropped["rows"], dropped["dropped"]["overlong"]) == (2, 1)
    assert dropped["dropped"]["examples"][0][0] == f"{tmp_path}/x.jsonl:2"
    kept = prepare(tmp_path / "keep", splits, data={**limit, "truncation": "left"})["splits"]["train"]
    assert (kept["rows"], kept["dropped"]["overlong"]) == (3, 0)
    assert kept["prompt_tokens"]["max"] > 64


def test_tools_count_towards_the_length(tmp_path: Path) -> None:
    config = config_of({"train": [write_lines(tmp_path / "x.jsonl", [GOOD])]})
    plain = Preparation(config, tmp_path / "plain", tokenizer, tmp_path / "w").run()
    with_tools = prepare(tmp_path / "tools", {"train": [write_lines(tmp_path / "x.jsonl", [GOOD])]})
    assert with_tools["splits"]["train"]["prompt_tokens"]["max"] > plain["splits"]["train"]["prompt_tokens"]["max"]


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({}, "prepare.splits is empty"),
        ({"train": []}, "prepare.splits.train is an empty list"),
    ],
)
def test_nothing_to_prepare(tmp_path: Path, splits: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / "out", splits)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no row is left of 0 read"):
        prepare(tmp_path / "out", {"train": [write_lines(tmp_path / "x.jsonl", [])]})


def test_a_stopped_preparation_continues_and_clears_what_is_stale(tmp_path: Path) -> None:
    out, calls = tmp_path / "out", 0
    config = config_of({"train": [{"source": "arithmetic", "rows": 90}]}, rows_per_shard=30)

    def stop_at_third() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:  # one while planning, one a shard
            raise StopRequested("stop")

    with pytest.raises(StopRequested):
        Preparation(config, out, tokenizer, tmp_path / "w", check=stop_at_third).run()
    first = out / "train-00000-of-00003.parquet"
    written = first.stat().st_mtime_ns
    assert not (out / "dataset_card.json").exists()
    (out / "train-00000-of-00007.parquet").write_text("left by another attempt")
    Preparation(config, out, tokenizer, tmp_path / "w").run()
    assert first.stat().st_mtime_ns == written
    whole = Preparation(config, tmp_path / "whole", tokenizer, tmp_path / "w").run()
    for name in whole["splits"]["train"]["files"]:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(os.listdir(out)) == sorted(os.listdir(tmp_path / "whole"))


def test_a_changed_input_is_prepared_anew(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "x.jsonl", [GOOD])
    config = config_of({"train": [source]})
    plan = Preparation(config, tmp_path / "out", tokenizer, tmp_path / "w")
    before = plan._plan("train")[0].fingerprint("")
    assert plan._plan("train")[0].fingerprint("") == before
    write_lines(tmp_path / "x.jsonl", [GOOD, GOOD])
    assert plan._plan("train")[0].fingerprint("") != before


# Workers


class FakeJob:
    def __init__(self, job_id: str, outcome: Any) -> None:
        self.job_id, self.outcome, self.cancelled = job_id, outcome, False

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        from submitit.core.utils import UncompletedJobError

        if self.outcome == "dies":
            raise UncompletedJobError("died")
        return self.outcome

    def cancel(self) -> None:
        self.cancelled = True


class FakeExecutor:
    """Task "x" dies as often as `deaths` says."""

    def __init__(self, deaths: dict[str, int]) -> None:
        self.deaths, self.started = dict(deaths), []

    def submit(self, fn: Any, *args: Any) -> FakeJob:
        _, task, _ = args
        self.started.append(task)
        if self.deaths.get(task, 0) > 0:
            self.deaths[task] -= 1
            return FakeJob(str(len(self.started)), "dies")
        return FakeJob(str(len(self.started)), ("UserError", "bad") if task == "bad" else ("result", task.upper()))


def run_fake(tasks: list[str], deaths: dict[str, int]) -> tuple[dict[int, str], list[str]]:
    executor, results = FakeExecutor(deaths), {}
    fan_out.fan_out(str, tasks, executor, 2, lambda: None, results.__setitem__)
    return results, executor.started


def test_a_dead_worker_is_retried_once() -> None:
    results, started = run_fake(["a", "b", "c"], {"b": 1})
    assert results == {0: "A", 1: "B", 2: "C"}
    assert sorted(started) == ["a", "b", "b", "c"]
    with pytest.raises(InfrastructureError, match=r"b: 2 workers died.*it left no log"):
        run_fake(["a", "b", "c"], {"b": 2})


def test_a_workers_message_reaches_the_person() -> None:
    with pytest.raises(UserError, match=r"^bad$"):
        run_fake(["a", "bad"], {})


def _die_once(task: Path) -> str:
    if not task.exists():
        task.touch()
        os._exit(9)
    return task.name


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find this file."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
def test_real_workers_with_a_real_death(tmp_path: Path) -> None:
    results: dict[int, str] = {}
    executor = fan_out.make_executor(tmp_path / "w")
    (tmp_path / "b").touch()
    fan_out.fan_out(_die_once, [tmp_path / "a", tmp_path / "b"], executor, 2, lambda: None, results.__setitem__)
    assert results == {0: "a", 1: "b"}


def _leave_a_child_alive(task: Path) -> None:
    task.write_text(str(os.getpid()))
    time.sleep(60)


@pytest.mark.usefixtures("importable")
def test_a_stop_ends_the_workers(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def stop_when_it_runs() -> None:
        if note.exists() and note.read_text():
            raise StopRequested("stop")

    with pytest.raises(StopRequested):
        executor = fan_out.make_executor(tmp_path / "w")
        fan_out.fan_out(_leave_a_child_alive, [note], executor, 1, stop_when_it_runs, lambda number, result: None)
    pid = int(note.read_text())
    for _ in range(100):
        if not fan_out._alive(pid):
            return
        time.sleep(0.1)
    os.kill(pid, 9)
    pytest.fail("the worker outlived the stop by ten seconds")


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
def test_workers_make_the_same_bytes(tmp_path: Path) -> None:
    splits = {"sft": [{"source": "arithmetic", "rows": 60, "options": {"demonstrations": True}}]}
    cards = [prepare(tmp_path / str(n), splits, rows_per_shard=30, num_workers=n) for n in (1, 2)]
    assert cards[0] == cards[1]
    assert sorted(os.listdir(tmp_path / "1")) == sorted(os.listdir(tmp_path / "2"))
    for name in os.listdir(tmp_path / "1"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name
