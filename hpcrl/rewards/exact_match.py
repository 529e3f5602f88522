"""The answer must be the ground truth, letter for letter."""

from __future__ import annotations

from typing import Any

from hpcrl.rewards.answers import tagged_or_last_line


def compute_score(
    solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, ignore_case: bool = False
) -> float:
    """1.0 when the answer equals the ground truth up to white space around it, else 0.0.

    The answer is what stands in the last <answer>…</answer>, else the last line.
    """
    answer, truth = tagged_or_last_line(solution_str), str(ground_truth).strip()
    if ignore_case:
        answer, truth = answer.casefold(), truth.casefold()
    return float(answer == truth)
