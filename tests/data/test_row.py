"""Validation: what a row may look like, and that a bad one says why."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.config.data import SourceConfig
from hpcrl.data.row import BadRow, row_hash, schema, validate
from hpcrl.data.sources import RawRow, Source, make_source

USER = {"role": "user", "content": "1+1?"}


def source() -> Source:
    return make_source(SourceConfig(source="arithmetic", rows=1), "train", 0, 0)


def valid(**fields: Any) -> dict[str, Any]:
    return validate(RawRow("here", {"prompt": "1+1?", "ground_truth": "2", **fields}), source(), "train", 5)


def test_a_row() -> None:
    row = valid(ability="math", metadata={"b": 1})
    assert row["prompt"] == [USER]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "2"}
    assert (row["extra_info"]["split"], row["extra_info"]["index"]) == ("train", 5)
    assert row["extra_info"]["metadata"] == '{"b": 1}'
    assert row["extra_info"]["need_tools_kwargs"] is False
    assert pa.Table.from_pylist([row], schema=schema(False)).num_rows == 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": None}, "prompt: missing"),
        ({"prompt": "  \n"}, "prompt: empty"),
        ({"prompt": []}, "prompt: empty"),
        ({"prompt": 5}, "prompt: not a list of chat messages"),
        ({"prompt": [{"role": "robot", "content": "x"}]}, "role is not one of"),
        ({"prompt": [{"role": "user", "content": None}]}, "content is not text"),
        ({"prompt": [{"role": "user"}]}, "content is not text"),
        ({"prompt": ["x"]}, "not a mapping"),
        ({"prompt": [USER, {"role": "assistant", "content": "2"}]}, "ends with a message of the assistant"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "parts that are not text"),
        ({"prompt": [{"role": "tool", "content": "x", "tool_calls": [1]}]}, "field 'tool_calls'"),
        ({"prompt": "\ud800"}, "not valid Unicode"),
        ({"ground_truth": None}, "ground_truth: missing"),
        ({"ground_truth": ""}, "ground_truth: empty"),
        ({"ground_truth": float("nan")}, "not a finite number"),
        ({"tools_kwargs": "[1]"}, "tools_kwargs: not a mapping"),
        ({"tools_kwargs": "{"}, "text that is not JSON"),
        ({"messages": [USER]}, "no assistant turn"),
    ],
)
def test_bad_rows(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        valid(**fields)


def test_a_row_that_could_not_be_read() -> None:
    with pytest.raises(BadRow, match="not JSON"):
        validate(RawRow("x:1", None, "not JSON"), source(), "train", 0)


def test_other_forms() -> None:
    assert valid(prompt=[USER, {"role": "tool", "content": "3", "name": None}])["prompt"][1]["role"] == "tool"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert valid(prompt=[{"role": "user", "content": parts}])["prompt"] == [{"role": "user", "content": "ab"}]
    assert valid(ground_truth=2)["reward_model"]["ground_truth"] == "2"
    structured = valid(ground_truth=["a", {"b": 1}])
    assert structured["reward_model"]["ground_truth"] == '["a", {"b": 1}]'
    assert structured["extra_info"]["ground_truth_is_json"] is True
    tools = valid(tools_kwargs={"calculator": {"create_kwargs": {"x": 1}}})["extra_info"]
    assert tools["need_tools_kwargs"] is True
    answered = validate(RawRow("here", {"messages": [USER, {"role": "assistant", "content": "2"}]}), source(), "sft", 0)
    assert answered["prompt"] == [USER]
    assert answered["reward_model"]["ground_truth"] == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    fields=st.dictionaries(
        st.sampled_from(["prompt", "ground_truth", "messages", "tools_kwargs", "metadata", "ability", "agent_name"]),
        JSON
        | st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": JSON}), max_size=2),
    )
)
def test_anything_becomes_a_row_that_parquet_takes_or_a_reason(fields: dict[str, Any]) -> None:
    try:
        row = validate(RawRow("here", {"prompt": "x", "ground_truth": "y", **fields}), source(), "train", 0)
    except BadRow as error:
        assert str(error)
        return
    table = pa.Table.from_pylist([row], schema=schema("messages" in row))
    assert table.to_pylist() == [row]
    assert row_hash(table.to_pylist()[0]) == row_hash(row)
