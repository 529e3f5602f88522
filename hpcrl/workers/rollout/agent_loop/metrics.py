"""Metrics of a batch of trajectories, from the columns that the agent loop adds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from hpcrl.protocol import DataProto

ERROR_KINDS = ("malformed", "unknown_tool", "arguments", "too_many", "execution", "timeout")


def rollout_metrics(data: DataProto) -> dict[str, float]:
    """Turns, tool calls and their failures, and why trajectories ended; of all rows of `data`."""
    rows = len(data)
    if not rows:
        return {}
    turns = np.array(data.non_tensor_batch["__num_turns__"].tolist(), dtype=float)
    calls: list[dict[str, Any]] = [call for calls in data.non_tensor_batch["tool_calls"] for call in calls]
    errors = Counter(call["error"] for call in calls if call["error"] is not None)
    reasons = Counter(data.non_tensor_batch["stop_reason"].tolist())
    metrics = {
        "num_turns/mean": float(turns.mean()),
        "num_turns/max": float(turns.max()),
        "num_turns/min": float(turns.min()),
        "tool_calls/per_trajectory": len(calls) / rows,
        "tool_calls/success": 1 - errors.total() / len(calls) if calls else 0.0,
        "response/aborted_ratio": reasons["abort"] / rows,
        "response/length_stop_ratio": reasons["length"] / rows,
    }
    if calls:
        metrics |= {f"tool_calls/error/{kind}": errors[kind] / len(calls) for kind in ERROR_KINDS}
        metrics["tool_calls/seconds/mean"] = float(np.mean([call["seconds"] for call in calls]))
        metrics["tool_calls/seconds/max"] = max(call["seconds"] for call in calls)
    return metrics
