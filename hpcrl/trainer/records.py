"""Samples as rows of a parquet file: what was asked, sampled, called, and scored."""

from __future__ import annotations

import json
from typing import Any

from hpcrl.protocol import DataProto


def sample_rows(batch: DataProto, scores: list[float], extra: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Columns of a record file; structured values are JSON strings, so that every file has one schema."""
    mask, attention = batch.batch["response_mask"], batch.batch["attention_mask"]
    prompt_length = batch.batch["prompts"].shape[1]
    objects = batch.non_tensor_batch
    rows: dict[str, list[Any]] = {
        "uid": list(objects["uid"]),
        "sample": [int(sample) for sample in objects["sample"]],
        "data_source": list(objects["data_source"]),
        "ground_truth": [_text(model.get("ground_truth")) for model in objects["reward_model"]],
        "messages": [json.dumps(messages, ensure_ascii=False) for messages in objects["messages"]],
        "tool_calls": [json.dumps(calls, ensure_ascii=False, default=str) for calls in objects["tool_calls"]],
        "num_turns": [int(turns) for turns in objects["__num_turns__"]],
        "stop_reason": list(objects["stop_reason"]),
        "weight_version": [int(version) for version in objects["weight_version"]],
        "score": scores,
        "prompt_ids": _ragged(batch.batch["prompts"], attention[:, :prompt_length]),
        "response_ids": _ragged(batch.batch["responses"], attention[:, prompt_length:]),
        "response_mask": _ragged(mask, attention[:, prompt_length:]),
    }
    for name in ("rollout_log_probs", "old_log_probs", "advantages"):
        if name in batch.batch:
            rows[name] = _ragged(batch.batch[name], attention[:, prompt_length:])
    return rows | {f"reward_{name}": _column(values) for name, values in extra.items()}


def _column(values: list[Any]) -> list[Any]:
    """Numbers as floats, or else everything as text; rows without a value stay empty."""
    numeric = all(isinstance(value, int | float) for value in values if value is not None)
    return [None if value is None else float(value) if numeric else _text(value) for value in values]


def _ragged(values: Any, mask: Any) -> list[list[Any]]:
    return [row[keep.bool()].tolist() for row, keep in zip(values, mask, strict=True)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
