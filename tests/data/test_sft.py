"""Demonstrations: the tokens a rollout would have made, and a mask on exactly what the assistant samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_fixture import TOOLS, prepare, tokenizer

from hpcrl.config.seam import UserError
from hpcrl.data.sft import SFTDataset, encode_conversation
from hpcrl.utils.chat import ChatTokens

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12+34"}}\n</tool_call>'
CONVERSATION = [
    {"role": "user", "content": "12 + 34 = ?"},
    {"role": "assistant", "content": CALL},
    {"role": "tool", "content": "46"},
    {"role": "assistant", "content": "#### 46"},
]


def pieces(tokens: dict[str, list[int]]) -> list[tuple[int, str]]:
    """Runs of equal mask, decoded."""
    found: list[tuple[int, list[int]]] = []
    for token, mask in zip(tokens["input_ids"], tokens["loss_mask"], strict=True):
        if not found or found[-1][0] != mask:
            found.append((mask, []))
        found[-1][1].append(token)
    return [(mask, tokenizer().decode(ids)) for mask, ids in found]


def test_the_mask_is_on_what_the_assistant_samples() -> None:
    tokens = encode_conversation(CONVERSATION, ChatTokens(tokenizer(), TOOLS))
    assert pieces(tokens) == [
        (0, "<|im_start|>system\nTools: calculator<|im_end|>\n<|im_start|>user\n12 + 34 = ?<|im_end|>\n"
            "<|im_start|>assistant\n"),
        (1, f"{CALL}<|im_end|>"),
        (0, "\n<|im_start|>tool\n46<|im_end|>\n<|im_start|>assistant\n"),
        (1, "#### 46<|im_end|>"),
    ]  # fmt: skip


def test_tokens_are_those_of_a_rollout() -> None:
    chat = ChatTokens(tokenizer(), TOOLS)
    tokens = encode_conversation(CONVERSATION, chat)
    sampled = tokenizer()(CALL, add_special_tokens=False)["input_ids"] + [chat.end_of_turn]
    prompt = chat.prompt_ids(CONVERSATION[:1])
    between = chat.followup_ids(CONVERSATION[:1], CONVERSATION[2:3])
    last = tokenizer()("#### 46", add_special_tokens=False)["input_ids"] + [chat.end_of_turn]
    assert tokens["input_ids"] == prompt + sampled + between + last
    assert chat.end_of_turn == tokenizer().eos_token_id


def write(path: Path, conversations: list[Any]) -> Path:
    pq.write_table(pa.table({"messages": conversations}), path)
    return path


def test_lengths(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", [CONVERSATION])
    whole = SFTDataset([path], tokenizer(), "messages", 1024, TOOLS)[0]
    with pytest.raises(UserError, match=r"x\.parquet, row 0: the conversation has \d+ tokens, over sft.max_length"):
        SFTDataset([path], tokenizer(), "messages", 20, TOOLS)[0]
    cut = SFTDataset([path], tokenizer(), "messages", 40, TOOLS, truncation="right")[0]
    assert cut == {key: value[:40] for key, value in whole.items()}


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        (CONVERSATION[:1], "no assistant turn"),
        (CONVERSATION[1:], "answers no message"),
        ([*CONVERSATION, CONVERSATION[3]], "answers no message"),
    ],
)
def test_conversations_without_a_meaning(tmp_path: Path, conversation: Any, message: str) -> None:
    path = write(tmp_path / "x.parquet", [CONVERSATION, conversation])
    with pytest.raises(UserError, match=rf"x\.parquet, row 1: .*{message}"):
        SFTDataset([path], tokenizer(), "messages", 1024, TOOLS)[1]


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", [CONVERSATION])
    with pytest.raises(UserError, match=r"no column 'chat' \(sft\.messages_key\); its columns: messages"):
        SFTDataset([path], tokenizer(), "chat", 1024)


def test_the_card_counts_the_tokens_that_training_sees(tmp_path: Path) -> None:
    splits = {"sft": [{"source": "arithmetic", "rows": 40, "options": {"demonstrations": True}}]}
    card = prepare(tmp_path / "out", splits, rows_per_shard=25)["splits"]["sft"]
    dataset = SFTDataset([tmp_path / "out" / name for name in card["files"]], tokenizer(), "messages", 1024, TOOLS)
    lengths = [len(dataset[i]["input_ids"]) for i in range(len(dataset))]
    statistics = card["conversation_tokens"]
    assert (statistics["min"], statistics["max"]) == (min(lengths), max(lengths))
    assert statistics["mean"] == pytest.approx(sum(lengths) / 40, abs=1e-3)
    prompts = [dataset[i]["loss_mask"].index(1) for i in range(len(dataset))]
    assert (card["prompt_tokens"]["min"], card["prompt_tokens"]["max"]) == (min(prompts), max(prompts))
