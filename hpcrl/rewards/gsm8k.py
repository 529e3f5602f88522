"""GSM8K: the final number of a solution (https://github.com/openai/grade-school-math)."""

from __future__ import annotations

import re
from typing import Any, Literal

STRICT = re.compile(r"####\s*(-?\$?[0-9][0-9.,]*)")
ANY_NUMBER = re.compile(r"-?\$?[0-9][0-9.,]*")


def compute_score(
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    method: Literal["strict", "flexible"] = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """`score` for the right final number, `format_score` for another one, 0.0 where there is none.

    Args:
        solution_str: the response.
        ground_truth: the number after `####` of the reference solution.
        extra_info: not looked at.
        method: strict: the number after the last `####`; flexible: the last number of the text.
        format_score, score: what a wrong and a right number are worth.
    """
    if method not in ("strict", "flexible"):
        raise ValueError(f"gsm8k: method must be strict or flexible, got {method!r}")
    numbers = (STRICT if method == "strict" else ANY_NUMBER).findall(solution_str)
    if not numbers:
        return 0.0
    return score if _plain(numbers[-1]) == _plain(str(ground_truth)) else format_score


def _plain(number: str) -> str:
    """Without separators, currency, a full stop behind, and zeros that say nothing."""
    text = number.strip().replace(",", "").replace("$", "").rstrip(".")
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, point, fraction = digits.partition(".")
    fraction = fraction.rstrip("0") if point else ""
    whole = whole.lstrip("0") or "0"
    value = f"{whole}.{fraction}" if fraction else whole
    return value if value == "0" else sign + value
