r"""MATH: the last \boxed{} of a solution, compared as normalised text (https://arxiv.org/abs/2103.03874, appendix)."""

from __future__ import annotations

import re
from typing import Any

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_UNIT = re.compile(r"\\(?:text|mbox|mathrm)\s*\{[^{}]*\}$")
_WORDS = re.compile(r"\\(?:text|mbox|mathrm|textbf|mathbf)\s*\{([^{}]*)\}")
_BARE_FRACTION = re.compile(r"\\frac(?:(\d)|\{([^{}]*)\})\s*(?:(\d)|\{([^{}]*)\})")
_BARE_ROOT = re.compile(r"\\sqrt\s*(\w)")
_SLASH = re.compile(r"(-?)(\d+)/(\d+)$")
_DROPPED = (
    "\\left",
    "\\right",
    "\\!",
    "\\,",
    "\\;",
    "\\:",
    "\\ ",
    "\\$",
    "$",
    "^{\\circ}",
    "^\\circ",
    "\\circ",
    "\\%",
    "%",
)


def compute_score(solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None) -> float:
    r"""1.0 when the last \boxed{} holds the ground truth, up to notation, else 0.0."""
    answer = last_boxed(solution_str)
    return float(answer is not None and normalised(answer) == normalised(str(ground_truth)))


def last_boxed(text: str) -> str | None:
    r"""What the last \boxed{…} (or \fbox{…}, or `\boxed 5`) holds; None where there is none or it is not closed."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    rest = text[boxes[-1].end() :]
    if not rest.startswith("{"):
        return rest.split("$")[0].split()[0] if rest.split("$")[0].split() else None
    depth = 0
    for i, letter in enumerate(rest):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return rest[1:i]
    return None


def normalised(answer: str) -> str:
    """An answer in one notation: units, spacing, fraction and root styles, and thousands separators made equal."""
    text = answer.strip().replace("\n", " ").rstrip(".")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac")
    for mark in _DROPPED:
        text = text.replace(mark, "")
    text = text.strip()
    without_unit = _UNIT.sub("", text).strip()
    text = _WORDS.sub(r"\1", without_unit or text)
    name, equals, value = text.partition("=")
    if equals and len(name.strip()) <= 2:
        text = value
    text = _BARE_ROOT.sub(r"\\sqrt{\1}", text)
    text = _BARE_FRACTION.sub(lambda m: f"\\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", text)
    text = "".join(text.split())
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    slash = _SLASH.fullmatch(text)
    if slash:
        text = f"{slash[1]}\\frac{{{slash[2]}}}{{{slash[3]}}}"
    text = re.sub(r"(?<![\d.])\.(?=\d)", "0.", text)
    text = re.sub(r"(\d\.\d*?)0+(?!\d)", r"\1", text)
    return re.sub(r"(?<=\d)\.(?!\d)", "", text)
