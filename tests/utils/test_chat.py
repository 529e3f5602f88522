"""Tokens between turns, against the whole conversation rendered by templates of several styles."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from hpcrl.config.model import TinyModelConfig
from hpcrl.config.seam import UserError
from hpcrl.models.tiny import build_tokenizer
from hpcrl.utils.chat import ChatTokens, check_template

TOOLS = [{"type": "function", "function": {"name": "calculator", "description": "", "parameters": {"type": "object"}}}]

CHATML = """\
{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system
You are a helpful assistant<|im_end|>
{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""As SmolLM2 writes it: a default system message, no tools."""

GROUPED = """\
{%- if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}
{{- '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""As Qwen2.5 writes it: neighbouring tool answers share one user turn."""

REWRITING = """\
{%- if tools %}{{ '<|im_start|>system\n' + tools[0].function.name + '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}
{%- set content = m.content.split('</think>')[-1] if m.role == 'assistant' else m.content | trim %}
{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"""
"""As thinking models write it: earlier thoughts are dropped, tool answers trimmed, the next thought begun."""

NO_NEWLINE = """\
{%- if tools %}{{ tools[0].function.name }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}"""

FAITHFUL = {"tiny": None, "grouped": GROUPED, "no-newline": NO_NEWLINE}
"""Templates that render earlier turns as they were sampled."""


def tokenizer_with(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer(TinyModelConfig())
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


TOKENIZERS = {name: tokenizer_with(template) for name, template in FAITHFUL.items()}
CHATS = {name: ChatTokens(tokenizer, TOOLS) for name, tokenizer in TOKENIZERS.items()}
plain_text = st.text(st.characters(codec="utf-8", exclude_characters="<|>"), max_size=20)


@pytest.mark.parametrize("name", FAITHFUL)
@given(turns=st.lists(st.tuples(plain_text, st.lists(plain_text, min_size=1, max_size=3)), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_appended_tokens_are_those_of_the_whole_conversation(name: str, turns: list[tuple[str, list[str]]]) -> None:
    chat = CHATS[name]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "12 + 34 = ?"}]
    ids = chat.prompt_ids(messages)
    for said, answers in turns:
        new = [{"role": "tool", "content": answer} for answer in answers]
        ids += [*chat.encode(said), chat.end_of_turn] + chat.followup_ids(messages, new)
        messages += [{"role": "assistant", "content": said}, *new]
        assert ids == chat.prompt_ids(messages)


def test_the_newline_behind_the_end_of_turn_belongs_to_the_followup() -> None:
    chat = CHATS["tiny"]
    ids = chat.followup_ids([{"role": "user", "content": "?"}], [{"role": "tool", "content": "46"}])
    assert chat.tokenizer.decode(ids) == "\n<|im_start|>tool\n46<|im_end|>\n<|im_start|>assistant\n"
    assert chat.end_of_turn == chat.tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_a_turn_without_its_end_gets_one() -> None:
    chat = CHATS["tiny"]
    before, new = [{"role": "user", "content": "?"}], [{"role": "user", "content": "go on"}]
    assert chat.followup_ids(before, new, ended=False) == [chat.end_of_turn, *chat.followup_ids(before, new)]


def test_what_a_template_rewrites_stays_as_it_was_sampled() -> None:
    tokenizer = tokenizer_with(REWRITING)
    chat = ChatTokens(tokenizer, TOOLS)
    before = [{"role": "user", "content": "?"}]
    followup = chat.followup_ids(before, [{"role": "tool", "content": " 46 "}])
    assert tokenizer.decode(followup) == "\n<|im_start|>tool\n46<|im_end|>\n<|im_start|>assistant\n<think>\n"
    check_template(tokenizer, TOOLS)


def test_a_default_system_message_stands_in_the_prompt_alone() -> None:
    tokenizer = tokenizer_with(CHATML)
    chat = ChatTokens(tokenizer)
    prompt = tokenizer.decode(chat.prompt_ids([{"role": "user", "content": "hi"}]))
    assert prompt.startswith("<|im_start|>system\nYou are") and prompt.endswith("hi<|im_end|>\n<|im_start|>assistant\n")
    followup = tokenizer.decode(chat.followup_ids([], [{"role": "user", "content": "more"}]))
    assert followup == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def test_templates_with_which_tools_cannot_work_are_refused() -> None:
    with pytest.raises(UserError, match=r"no tool support.*\['calculator'\]"):
        check_template(tokenizer_with(CHATML), TOOLS)
    check_template(tokenizer_with(CHATML))
    hides_answers = NO_NEWLINE.replace("{%- for m in messages %}", "{%- for m in messages if m.role != 'tool' %}")
    with pytest.raises(UserError, match="role `tool`"):
        check_template(tokenizer_with(hides_answers), TOOLS)
    refuses = NO_NEWLINE.replace("m.content +", "(m.content if m.role != 'tool' else raise_exception('no tools')) +")
    with pytest.raises(UserError, match=r"refuses a conversation.*no tools"):
        check_template(tokenizer_with(refuses), TOOLS)
    with pytest.raises(UserError, match="no chat template"):
        check_template(tokenizer_with(""))


def test_template_kwargs_reach_the_template() -> None:
    template = "{{ greeting }}" + CHATML
    chat = ChatTokens(tokenizer_with(template), template_kwargs={"greeting": "hello there"})
    assert chat.tokenizer.decode(chat.prompt_ids([{"role": "user", "content": "x"}])).startswith(
        "hello there<|im_start|>"
    )


def test_messages_are_not_mixed_up_by_the_memory() -> None:
    chat = CHATS["tiny"]
    texts = ["1", "2", "1 "]
    seen = {tuple(chat.prompt_ids([{"role": "user", "content": text}])) for text in texts}
    assert len(seen) == len(texts)
    for a, b in itertools.pairwise(texts):
        tools = [{"role": "tool", "content": a}], [{"role": "tool", "content": b}]
        assert chat.followup_ids([], tools[0]) != chat.followup_ids([], tools[1])
