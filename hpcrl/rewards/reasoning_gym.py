"""Tasks of reasoning_gym by their own scorers (https://github.com/open-thought/reasoning-gym)."""

from __future__ import annotations

from functools import cache
from typing import Any

from hpcrl.config.seam import UserError
from hpcrl.rewards.answers import tagged_or_last_line

BOARD_TASKS = ("arc_agi", "rearc")
"""Their scorers compare with tuples, which the parquet file holds as lists."""


def compute_score(solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None) -> float:
    """The task's own score of the answer, mostly between 0 and 1.

    Args:
        solution_str: the answer stands in the last <answer>…</answer>, else in the last line.
        ground_truth: the entry's answer; empty for tasks without a single one.
        extra_info: `metadata` is the entry's own, with `source_dataset` for the task; `question` is the entry's.
    """
    info = extra_info or {}
    metadata = info.get("metadata")
    if not isinstance(metadata, dict) or "source_dataset" not in metadata:
        raise UserError("reasoning_gym: the row has no extra_info.metadata.source_dataset, which names its scorer")
    task = metadata["source_dataset"]
    if task in BOARD_TASKS and isinstance(metadata.get("output"), list):
        metadata = {**metadata, "output": tuple(tuple(row) for row in metadata["output"])}
    entry = {"question": info.get("question"), "answer": ground_truth or None, "metadata": metadata}
    return float(_scorer(task)(tagged_or_last_line(solution_str) or None, entry))


@cache
def _scorer(task: str) -> Any:
    from reasoning_gym import get_score_answer_fn

    try:
        return get_score_answer_fn(task)
    except ValueError as error:
        raise UserError(f"reasoning_gym: {error}") from error
