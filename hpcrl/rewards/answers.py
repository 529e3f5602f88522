"""Finding the answer in a response."""

from __future__ import annotations

import re

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def tagged_or_last_line(text: str) -> str:
    """What stands in the last <answer>…</answer>, else the last line that is not empty; stripped."""
    tagged = _TAGGED.findall(text)
    if tagged:
        return tagged[-1].strip()
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
