"""The row: its one parquet schema, and the validation of every raw row on its way there."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from hpcrl.data.sources.base import RawRow, Source

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
EXTRA_INFO = pa.struct(
    [
        ("split", pa.string()),
        ("index", pa.int64()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("need_tools_kwargs", pa.bool_()),
        ("tools_kwargs", pa.string()),
        ("interaction_kwargs", pa.string()),
        ("metadata", pa.string()),
        ("ground_truth_is_json", pa.bool_()),
        ("prompt_tokens", pa.int32()),
    ]
)
FIELDS = [
    ("data_source", pa.string()),
    ("prompt", MESSAGES),
    ("ability", pa.string()),
    ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
    ("extra_info", EXTRA_INFO),
    ("agent_name", pa.string()),
]
JSON_FIELDS = ("tools_kwargs", "interaction_kwargs", "metadata")
"""Fields of extra_info that hold free-form values as JSON text, so that every shard has one schema."""
ROLES = ("system", "user", "assistant", "tool")


def schema(with_messages: bool) -> pa.Schema:
    """The parquet schema of a split; splits for supervised training have whole conversations, too."""
    return pa.schema(FIELDS + ([("messages", MESSAGES)] if with_messages else []))


class BadRow(Exception):
    """A row that cannot be used; the message is short and the same for all rows with this fault."""


def validate(raw: RawRow, source: Source, split: str, index: int) -> dict[str, Any]:
    """The row as it will stand in parquet.

    Args:
        raw: what the source gave.
        source: gives the defaults of data_source, ability and agent_name.
        split: our split.
        index: the row's place in the split's input, which is its identity.

    Raises:
        BadRow: with the reason.
    """
    fields = raw.fields
    if fields is None:
        raise BadRow(raw.problem)
    messages = conversation(fields["messages"], "messages") if fields.get("messages") is not None else None
    prompt = _prompt(fields.get("prompt"), messages)
    truth, is_json = _ground_truth(fields.get("ground_truth"), required=messages is None and source.needs_ground_truth)
    tools_kwargs = _mapping(fields.get("tools_kwargs"), "tools_kwargs")
    need = fields.get("need_tools_kwargs")
    row: dict[str, Any] = {
        "data_source": _text(source.config.data_source or fields.get("data_source") or source.name, "data_source"),
        "prompt": prompt,
        "ability": _text(fields.get("ability") or "", "ability"),
        "reward_model": {"style": _text(fields.get("style") or "rule", "style"), "ground_truth": truth},
        "extra_info": {
            "split": split,
            "index": index,
            "question": _optional(fields.get("question"), "question"),
            "answer": _optional(fields.get("answer"), "answer"),
            "need_tools_kwargs": bool(tools_kwargs) if need is None else need is True or str(need).lower() == "true",
            "tools_kwargs": tools_kwargs,
            "interaction_kwargs": _mapping(fields.get("interaction_kwargs"), "interaction_kwargs"),
            "metadata": None if fields.get("metadata") is None else to_json(fields["metadata"], "metadata"),
            "ground_truth_is_json": is_json,
            "prompt_tokens": None,
        },
        "agent_name": _optional(fields.get("agent_name") or source.options.agent_name, "agent_name"),
    }
    if source.has_messages and messages is None:
        raise BadRow("messages: missing, though this split has conversations")
    if messages is not None:
        if not any(message["role"] == "assistant" for message in messages):
            raise BadRow("messages: no assistant turn to learn from")
        row["messages"] = messages
    return row


def prompt_messages(value: Any, field: str) -> list[dict[str, str]]:
    """A prompt as chat messages: such messages, their JSON text, or any other text as the user's message."""
    if isinstance(value, str) and not is_chat_text(value):
        value = [{"role": "user", "content": value}]
    return conversation(value, field)


def is_chat_text(text: str) -> bool:
    """Whether a text is the JSON of chat messages, as CSV files hold them."""
    return text.lstrip().startswith("[") and '"role"' in text and '"content"' in text


def conversation(value: Any, field: str) -> list[dict[str, str]]:
    """Chat messages of {role, content}, from such messages or from their JSON text."""
    if isinstance(value, str):
        value = _parsed(value, field)
    if not isinstance(value, list) or not value:
        raise BadRow(f"{field}: {'empty' if value == [] else 'not a list of chat messages'}")
    return [_message(message, field) for message in value]


def _message(message: Any, field: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise BadRow(f"{field}: a message is not a mapping of role and content")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise BadRow(f"{field}: a message's role is not one of {', '.join(ROLES)}")
    further = sorted(key for key in message if key not in ("role", "content") and message[key] not in (None, [], ""))
    if further:
        raise BadRow(f"{field}: a message has the field {further[0]!r}; write it as text into its content")
    if isinstance(content, list):
        content = _joined(content, field)
    if not isinstance(content, str):
        raise BadRow(f"{field}: a message's content is not text")
    return {"role": role, "content": _encodable(content, field)}


def _joined(parts: list[Any], field: str) -> str:
    """Content given as a list of parts, all of which must be text."""
    if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        raise BadRow(f"{field}: a message's content has parts that are not text")
    return "".join(str(part.get("text") or "") for part in parts)


def before_first_answer(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """A conversation's messages up to the assistant's first turn."""
    return messages[: next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))]


def _prompt(value: Any, messages: list[dict[str, str]] | None) -> list[dict[str, str]]:
    if value is None and messages is not None:
        value = before_first_answer(messages)
    if value is None:
        raise BadRow("prompt: missing")
    prompt = prompt_messages(value, "prompt")
    if prompt[-1]["role"] not in ("user", "tool"):
        raise BadRow(f"prompt: ends with a message of the {prompt[-1]['role']}, not of the user or a tool")
    if not prompt[-1]["content"].strip():
        raise BadRow("prompt: empty")
    return prompt


def _ground_truth(value: Any, required: bool) -> tuple[str, bool]:
    """The ground truth as text, and whether that text is the JSON of a list or mapping."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRow("ground_truth: not a finite number")
    if value is None:
        if required:
            raise BadRow("ground_truth: missing")
        return "", False
    if isinstance(value, str):
        if required and not value.strip():
            raise BadRow("ground_truth: empty")
        return _encodable(value, "ground_truth"), False
    return to_json(value, "ground_truth"), isinstance(value, list | dict)


def _mapping(value: Any, field: str) -> str | None:
    """A mapping, or its JSON text, as JSON text."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = _parsed(value, field)
    if not isinstance(value, Mapping):
        raise BadRow(f"{field}: not a mapping")
    return to_json(value, field)


def _parsed(text: str, field: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise BadRow(f"{field}: text that is not JSON") from None


def to_json(value: Any, field: str) -> str:
    """JSON text of a free-form value; what JSON does not know (dates, bytes, …) becomes its text."""
    try:
        return _encodable(json.dumps(value, ensure_ascii=False, default=_plain), field)
    except (TypeError, ValueError):
        raise BadRow(f"{field}: cannot be written as JSON") from None


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return value.item() if hasattr(value, "item") else str(value)


def _optional(value: Any, field: str) -> str | None:
    return None if value is None else _text(value, field)


def _text(value: Any, field: str) -> str:
    if isinstance(value, list | dict):
        return to_json(value, field)
    return _encodable(value if isinstance(value, str) else str(value), field)


def _encodable(text: str, field: str) -> str:
    """Text without lone surrogates, which no file and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRow(f"{field}: text that is not valid Unicode") from None
    return text


def row_hash(row: Mapping[str, Any]) -> int:
    """A 256-bit hash of a row; the sum over rows, modulo 2**256, is a split's content hash, however it is sharded."""
    text = json.dumps(row, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
