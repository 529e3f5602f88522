"""The last `#### n` of a response against a whole number."""

from __future__ import annotations

import re
from typing import Any

FINAL = re.compile(r"####\s*(-?\d+)(?!\d|\.\d)")


def compute_score(solution_str: str, ground_truth: str | int, extra_info: dict[str, Any] | None = None) -> float:
    """1.0 when the last `#### n` is the ground truth, else 0.0."""
    answers = FINAL.findall(solution_str)
    return float(bool(answers) and _plain(answers[-1]) == _plain(str(ground_truth)))


def _plain(number: str) -> str:
    """Without leading zeros and the sign of a zero; on text, since a response may hold any number of digits."""
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    digits = digits.strip().lstrip("0")
    return sign + digits if digits else "0"
