"""Tool calls as models write them, well or badly."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcrl.config.seam import UserError
from hpcrl.workers.rollout.tool_parser import BadToolCall, ToolCall, get_tool_parser

PARSER = get_tool_parser("hermes")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
scraps = st.sampled_from(
    ["<tool_call>", "</tool_call>", "\n", '{"name": ', '"calculator"', ', "arguments": ', "{", "}", "[", '"', "\\ud800"]
)


def call(value: object) -> str:
    return f"<tool_call>\n{json.dumps(value)}\n</tool_call>"


def test_a_call() -> None:
    text = 'I compute.\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "12+34"}}\n</tool_call>'
    assert PARSER.parse(text) == [ToolCall("calculator", {"expression": "12+34"})]
    assert PARSER.parse("#### 46") == []


def test_several_calls_keep_their_order() -> None:
    text = call({"name": "a", "arguments": {}}) + call({"name": "b", "arguments": {"x": [1]}})
    assert PARSER.parse(text) == [ToolCall("a", {}), ToolCall("b", {"x": [1]})]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('<tool_call>{"name": "a", "arguments": {</tool_call>', "Invalid JSON"),
        ("<tool_call></tool_call>", "Invalid JSON"),
        (call(["a"]), "must be a JSON object"),
        (call({"arguments": {}}), "name must be"),
        (call({"name": 3, "arguments": {}}), "name must be"),
        (call({"name": "a"}), "Invalid arguments for a"),
        (call({"name": "a", "arguments": "x"}), "Invalid arguments for a"),
        (call({"name": "a", "arguments": [1]}), "Invalid arguments for a"),
        ('<tool_call>{"name": "a", "arguments": {}}', "</tool_call> is missing"),
        ('<tool_call>{"name": "a", "arguments": {"x": "\\ud800"}}</tool_call>', "Unicode"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "Invalid JSON"),
        (f'<tool_call>{{"name": "a", "arguments": {{"x": {"9" * 5000}}}}}</tool_call>', "Invalid JSON"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    (bad,) = PARSER.parse(text)
    assert isinstance(bad, BadToolCall)
    assert said in bad.error


@given(st.text(min_size=1).filter(lambda s: s.isascii()), st.dictionaries(st.text(max_size=5), json_values, max_size=3))
@settings(max_examples=100, deadline=None)
def test_every_well_formed_call_is_read(name: str, arguments: dict[str, object]) -> None:
    text = json.dumps({"name": name, "arguments": arguments})
    if "tool_call>" in text or "\\ud" in text:
        return
    assert PARSER.parse(f"<tool_call>{text}</tool_call>") == [ToolCall(name, arguments)]


@given(st.lists(scraps | st.text(max_size=8), max_size=20).map("".join))
@example("<tool_call>" * 3)
@settings(max_examples=300, deadline=None)
def test_nothing_raises(text: str) -> None:
    calls = PARSER.parse(text)
    assert len(calls) == text.count("<tool_call>")
    for found in calls:
        assert isinstance(found, BadToolCall) or (isinstance(found.name, str) and isinstance(found.arguments, dict))


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UserError, match=r"did you mean 'hermes'"):
        get_tool_parser("herms")
