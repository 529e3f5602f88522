"""What each source makes of its published layouts."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.config.data import SourceConfig
from hpcrl.config.seam import UserError
from hpcrl.config.sources import SOURCE_OPTIONS
from hpcrl.data.row import validate
from hpcrl.data.sources import SOURCES, make_source
from hpcrl.data.sources.gsm8k import final_number
from hpcrl.data.sources.math import boxed_answer


def rows_of(into: str = "train", /, **config: Any) -> list[dict[str, Any]]:
    """All validated rows of a source."""
    source = make_source(SourceConfig(**config), into, 0, run_seed=7)
    count = source.open()
    return [validate(raw, source, into, i) for i, raw in enumerate(source.read(0, count))]


def test_the_registry_and_the_options_are_of_the_same_sources() -> None:
    assert set(SOURCES) == set(SOURCE_OPTIONS)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"source": "aritmetic", "rows": 5}, r"train\.0\.source: unknown source 'aritmetic'; nearest: arithmetic"),
        ({"source": "arithmetic", "options": {"max_operant": 5}}, "max_operant: unknown option.*nearest: max_operand"),
        (
            {"source": "arithmetic", "options": {"ops": ["/"]}},
            r"train\.0\.options\.ops\.0: '/' is not allowed; allowed: \+, -, \*",
        ),
        ({"source": "arithmetic"}, "say how many"),
        ({"source": "file"}, "needs a file, a folder or a glob"),
        ({"source": "file", "path": "/nowhere/x.jsonl"}, "no file, no folder"),
        ({"source": "file", "path": "x", "columns": {"promt": "q"}}, r"columns\.promt: unknown field; nearest: prompt"),
        ({"source": "reasoning_gym", "rows": 3, "options": {"task": "chain_summ"}}, "nearest: chain_sum"),
        ({"source": "reasoning_gym", "rows": 3, "options": {}}, "task"),
        ({"source": "reasoning_gym", "rows": 3, "options": {"task": "chain_sum", "nonsense": 1}}, "nonsense"),
        ({"source": "reasoning_gym", "rows": 3, "options": {"task": "chain_sum", "min_terms": -3}}, "min_terms"),
        ({"source": "huggingface", "path": "./nowhere"}, "neither there nor a hub id"),
        ({"source": "huggingface", "path": "owner/absent", "options": {"offline": True}}, "hub is offline"),
        ({"source": "gsm8k", "options": {"offline": True}}, "openai/gsm8k is neither a local folder nor"),
    ],
)
def test_faults_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rows_of(**config)


def test_arithmetic_is_right_and_its_splits_share_no_question() -> None:
    train = rows_of("train", source="arithmetic", rows=27_500)
    test = rows_of("test", source="arithmetic", rows=2_500)
    questions = {row["extra_info"]["question"] for row in train}, {row["extra_info"]["question"] for row in test}
    assert not questions[0] & questions[1]
    assert len(questions[1]) == 2_500  # none twice while there are others left
    for row in test:
        question = row["extra_info"]["question"]
        assert str(eval(question.removesuffix(" = ?"))) == row["reward_model"]["ground_truth"]
        a, op, b = question.split()[:3]
        assert op == "-" or f"{b} {op} {a} = ?" not in questions[0]
        assert row["prompt"] == [{"role": "user", "content": question}]
        assert row["data_source"] == "hpcrl/arithmetic"


def test_arithmetic_with_more_questions_than_can_be_listed() -> None:
    options = {"max_operand": 10_000, "ops": ["+"]}
    train = rows_of("train", source="arithmetic", rows=400, options=options)
    test = rows_of("test", source="arithmetic", rows=400, options=options)
    asked = [{row["extra_info"]["question"] for row in split} for split in (train, test)]
    assert not asked[0] & asked[1]
    assert max(int(question.split()[0]) for question in asked[0]) > 1000


def test_arithmetic_demonstrations() -> None:
    rows = rows_of("sft", source="arithmetic", rows=1000, options={"demonstrations": True, "right_fraction": 0.5})
    right = [row for row in rows if len(row["messages"]) == 4]
    assert 400 < len(right) < 600
    for row in right:
        user, call, tool, final = row["messages"]
        truth = row["reward_model"]["ground_truth"]
        body = call["content"].removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        expression = user["content"].removesuffix(" = ?").replace(" ", "")
        assert json.loads(body) == {"name": "calculator", "arguments": {"expression": expression}}
        assert (tool["role"], tool["content"], final["content"]) == ("tool", truth, f"#### {truth}")
    given_up = [row["messages"][-1]["content"] for row in rows if len(row["messages"]) == 2]
    assert len(right) + len(given_up) == len(rows)
    assert set(given_up) == {"#### ?"}


@pytest.mark.parametrize(
    "config",
    [
        {"source": "arithmetic", "rows": 50, "options": {"demonstrations": True}},
        {"source": "reasoning_gym", "rows": 20, "options": {"task": "basic_arithmetic"}},
    ],
)
def test_generators_read_any_range_alike_and_follow_the_seed(config: dict[str, Any]) -> None:
    def read(seed: int, start: int, stop: int, split: str = "train") -> list[Any]:
        source = make_source(SourceConfig(**config), split, 0, run_seed=seed)
        source.open()
        return list(pickle.loads(pickle.dumps(source)).read(start, stop))

    whole = read(1, 0, 20)
    assert read(1, 0, 7) + read(1, 7, 20) == whole
    assert read(2, 0, 20) != whole
    assert read(1, 0, 20, "sft") != whole
    config = {**config, "seed": 5}
    assert read(1, 0, 20) == read(2, 0, 20)


def test_reasoning_gym_keeps_what_its_scorer_needs() -> None:
    import reasoning_gym

    for task in ("chain_sum", "countdown", "graph_color", "knights_knaves"):
        rows = rows_of(source="reasoning_gym", rows=3, options={"task": task})
        scorer = reasoning_gym.create_dataset(task, size=1, seed=1)
        for row in rows:
            assert row["data_source"] == f"reasoning_gym/{task}"
            truth = row["reward_model"]["ground_truth"]
            entry = {
                "question": row["extra_info"]["question"],
                "answer": truth,
                "metadata": json.loads(row["extra_info"]["metadata"]),
            }
            score = scorer.score_answer(truth, entry)
            assert score == (1.0 if truth else 0.0)


def test_instruction_and_system_prompt() -> None:
    options = {"instruction": "Be brief.", "system_prompt": "You add.", "agent_name": "single_turn_agent"}
    row = rows_of(source="arithmetic", rows=1, options=options)[0]
    question = row["extra_info"]["question"]
    assert row["prompt"] == [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": f"{question}\n\nBe brief."},
    ]
    assert row["agent_name"] == "single_turn_agent"


GSM8K = [
    {"question": "How many?", "answer": "He has 2*3=<<2*3=6>>6.\n#### 6"},
    {"question": "How much?", "answer": "A lot.\n#### 1,234"},
]


def test_gsm8k_layouts(tmp_path: Path) -> None:
    (tmp_path / "hub" / "main").mkdir(parents=True)
    (tmp_path / "hub" / "socratic").mkdir()
    for config in ("main", "socratic"):
        for split, rows in (("train", GSM8K), ("test", GSM8K[:1])):
            pl.DataFrame(rows).write_parquet(tmp_path / "hub" / config / f"{split}-00000-of-00001.parquet")
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GSM8K))
    (tmp_path / "lines" / "test.jsonl").write_text(json.dumps(GSM8K[0]) + "\n")
    for path in ("hub", "lines", "lines/train.jsonl"):
        rows = rows_of(source="gsm8k", path=str(tmp_path / path))
        assert [row["reward_model"]["ground_truth"] for row in rows] == ["6", "1234"], path
        assert rows[0]["data_source"] == "openai/gsm8k"
        assert rows[0]["prompt"][0]["content"].startswith("How many?\n\n")
        assert rows[0]["extra_info"]["answer"] == GSM8K[0]["answer"]
    assert len(rows_of("test", source="gsm8k", path=str(tmp_path / "hub"))) == 1
    assert len(rows_of("val", source="gsm8k", path=str(tmp_path / "hub"), split="test")) == 1
    with pytest.raises(UserError, match="no files of the split 'validation'; its splits: test, train"):
        rows_of("validation", source="gsm8k", path=str(tmp_path / "hub"))


def test_final_number() -> None:
    assert final_number("…#### $1,000 ") == "1000"
    assert final_number("#### 1\n#### -2") == "-2"
    for text in ("no answer", "#### "):
        with pytest.raises(ValueError, match="####"):
            final_number(text)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so \boxed{3}.", "3"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\text{a {b} c}}", r"\text{a {b} c}"),
        (r"$\boxed{\left\{1,2\right\}}$", r"\left\{1,2\right\}"),
        (r"\fbox{7}", "7"),
        (r"$\boxed 9$", "9"),
        (r"$\boxed {x^{2}}$", "x^{2}"),
        (r"\boxed{2} and \boxed{unclosed", "2"),
    ],
)
def test_boxed_answer(solution: str, answer: str) -> None:
    assert boxed_answer(solution) == answer


@given(st.recursive(st.text("ab1+", max_size=4), lambda inner: st.builds(lambda a, b: f"{a}{{{b}}}", inner, inner)))
def test_boxed_answer_finds_whatever_is_balanced(held: str) -> None:
    assert boxed_answer(f"first \\boxed{{0}}, then \\boxed{{{held}}} and {{more}}") == held.strip()


def test_no_boxed_answer() -> None:
    for solution in ("", r"\boxed{", "boxed{3}"):
        with pytest.raises(ValueError, match="boxed"):
            boxed_answer(solution)


def test_math_layouts(tmp_path: Path) -> None:
    problem = {"problem": "What?", "level": "Level 2", "type": "Algebra", "solution": r"It is $\boxed{\sqrt{2}}$."}
    for subject in ("algebra", "counting_and_probability"):
        (tmp_path / "hendrycks" / "train" / subject).mkdir(parents=True)
        for number in (10, 9):
            value = {**problem, "problem": f"{subject} {number}?"}
            (tmp_path / "hendrycks" / "train" / subject / f"{number}.json").write_text(json.dumps(value, indent=1))
    rows = rows_of(source="math", path=str(tmp_path / "hendrycks"))
    assert [row["extra_info"]["question"] for row in rows] == [
        f"{subject} {n}?" for subject in ("algebra", "counting_and_probability") for n in (9, 10)
    ]
    assert {row["reward_model"]["ground_truth"] for row in rows} == {r"\sqrt{2}"}
    assert json.loads(rows[0]["extra_info"]["metadata"]) == {"level": "Level 2", "type": "Algebra"}
    chosen = rows_of(source="math", path=str(tmp_path / "hendrycks"), options={"subjects": "Counting & Probability"})
    assert [row["extra_info"]["question"].split()[0] for row in chosen] == ["counting_and_probability"] * 2

    (tmp_path / "lighteval").mkdir()
    pl.DataFrame([problem] * 3).write_parquet(tmp_path / "lighteval" / "train-00000-of-00001.parquet")
    rows = rows_of(source="math", path=str(tmp_path / "lighteval"))
    assert [row["data_source"] for row in rows] == ["DigitalLearningGmbH/MATH-lighteval"] * 3

    (tmp_path / "test.jsonl").write_text(
        json.dumps({**problem, "answer": "x", "subject": "Algebra", "level": 2, "unique_id": "test/1.json"}) + "\n"
    )
    row = rows_of("test", source="math", path=str(tmp_path / "test.jsonl"))[0]
    assert (row["data_source"], row["reward_model"]["ground_truth"]) == ("HuggingFaceH4/MATH-500", "x")


def test_file_with_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"q": "1+1", "a": 2, "kind": {"name": "sum"}}\n')
    (tmp_path / "b.jsonl").write_text('{"q": "2+2", "a": "4", "kind": null}\n')
    columns = {"prompt": "q", "ground_truth": "a", "ability": "kind.name"}
    rows = rows_of(source="file", path=str(tmp_path / "*.jsonl"), columns=columns, data_source="mine/sums")
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["2", "4"]
    assert [row["ability"] for row in rows] == ["sum", ""]
    assert {row["data_source"] for row in rows} == {"mine/sums"}
    with pytest.raises(UserError, match=r"no column 'x'.*columns\.prompt.*its columns: q, a, kind"):
        rows_of(source="file", path=str(tmp_path), columns={"prompt": "x"})
    with pytest.raises(UserError, match=r"no column 'prompt'; its columns: q, a, kind\. Say which"):
        rows_of(source="file", path=str(tmp_path))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_file_in_the_row_layout_needs_no_mapping(tmp_path: Path, suffix: str) -> None:
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "How many?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "6"},
        "extra_info": {
            "split": "train",
            "index": 3,
            "question": "q",
            "answer": "a",
            "need_tools_kwargs": True,
            "tools_kwargs": {"calculator": {"create_kwargs": {"ground_truth": "6"}}},
        },
        "agent_name": "tool_agent",
    }
    path = tmp_path / f"x.{suffix}"
    frame = pl.DataFrame([row])
    frame.write_parquet(path) if suffix == "parquet" else path.write_text(json.dumps(row))
    found = rows_of(source="file", path=str(path))[0]
    assert found["prompt"] == row["prompt"]
    assert found["reward_model"] == row["reward_model"]
    assert json.loads(found["extra_info"]["tools_kwargs"]) == row["extra_info"]["tools_kwargs"]
    assert found["extra_info"]["need_tools_kwargs"] is True
    assert (found["agent_name"], found["data_source"]) == ("tool_agent", "openai/gsm8k")


def test_huggingface_layouts(tmp_path: Path) -> None:
    def write(name: str, truth: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pl.DataFrame([{"prompt": name, "ground_truth": truth}]).write_parquet(path)

    write("flat/data/train-00000-of-00002.parquet", "1")
    write("flat/data/train-00001-of-00002.parquet", "2")
    write("flat/data/test-00000-of-00001.parquet", "3")
    write("folders/train/a.parquet", "1")
    write("folders/valid/a.parquet", "2")
    write("configs/en/train.parquet", "1")
    write("configs/de/train.parquet", "2")
    write("plain/something.parquet", "1")
    write("declared/x/one.parquet", "1")
    write("declared/x/two.parquet", "2")
    (tmp_path / "declared" / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        "  - split: train\n    path: x/one*\n  - split: golden\n    path: [x/two.parquet]\n---\n# Hello\n"
    )

    def truths(folder: str, into: str, /, **config: Any) -> list[str]:
        rows = rows_of(into, source="huggingface", path=str(tmp_path / folder), **config)
        return [row["reward_model"]["ground_truth"] for row in rows]

    assert truths("flat", "train") == ["1", "2"]
    assert truths("flat", "test") == ["3"]
    assert truths("folders", "validation") == ["2"]
    assert truths("folders", "val") == ["2"]
    assert truths("configs", "train", options={"config": "de"}) == ["2"]
    assert truths("plain", "train") == ["1"]
    assert truths("declared", "train") == ["1"]
    assert truths("declared", "test", split="golden") == ["2"]
    with pytest.raises(UserError, match="several, choose one: de, en"):
        truths("configs", "train")
    with pytest.raises(UserError, match="declares no split 'test', only train, golden"):
        truths("declared", "test")


def test_a_hub_data_set_from_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub" / "datasets--someone--sums" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("abc")
    pl.DataFrame([{"prompt": "1+1", "ground_truth": "2"}]).write_parquet(snapshot / "train.parquet")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    rows = rows_of(source="huggingface", path="someone/sums", options={"offline": True})
    assert rows[0]["data_source"] == "someone/sums"


def test_prompts_in_csv_may_be_chat_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": 'say "1, 2"\n'}]
    pl.DataFrame(
        {"prompt": [json.dumps(messages), "[1, 2] plus?"], "ground_truth": ["1", "3"], "ability": [None, "x"]}
    ).write_csv(tmp_path / "x.csv")
    rows = rows_of(source="file", path=str(tmp_path / "x.csv"))
    assert rows[0]["prompt"] == messages
    assert rows[1]["prompt"] == [{"role": "user", "content": "[1, 2] plus?"}]
    assert [row["ability"] for row in rows] == ["", "x"]
