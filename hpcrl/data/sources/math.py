"""MATH as it is published: a folder of JSON files by subject, parquet of MATH-lighteval, or JSON lines of MATH-500."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hpcrl.config.seam import UserError
from hpcrl.config.sources import HUB_IDS
from hpcrl.data.sources.base import chat
from hpcrl.data.sources.file import FileSource
from hpcrl.data.sources.huggingface import dataset_folder, split_paths

DATA_SOURCE = "DigitalLearningGmbH/MATH-lighteval"
MATH_500 = "HuggingFaceH4/MATH-500"
BOXED = re.compile(r"\\(?:boxed|fbox)\s*")


class Math(FileSource):
    """The ground truth is the `answer` column where there is one, else what the solution's last \\boxed{} holds."""

    def find(self) -> list[Path]:
        path = self.config.path or HUB_IDS["math"]
        folder = dataset_folder(path, self.options.revision, self.options.offline, self.where)
        paths = _by_subject(folder, self.config.split or self.split)
        if paths and self.options.subjects:
            wanted = {_subject(name) for name in self.options.subjects}
            paths = [path for path in paths if _subject(path.parent.name) in wanted]
            if not paths:
                raise UserError(f"{self.where}.options.subjects: {folder} has none of {self.options.subjects}")
        if paths:
            return paths
        config = "default" if (folder / "default").is_dir() else None
        return split_paths(folder, self.config.split or self.split, config, self.where)

    def check_columns(self) -> None:
        for file in self.files:
            columns = set(file.columns)
            if file.records and columns and not ("problem" in columns and columns & {"solution", "answer"}):
                raise UserError(
                    f"{file.path} is not MATH: it needs the columns problem and solution (or answer); "
                    f"its columns: {', '.join(file.columns)}"
                )

    def wanted_columns(self) -> set[str]:
        return {"problem", "solution", "answer", "level", "type", "subject", "unique_id"}

    def fields(self, record: dict[str, Any]) -> dict[str, Any]:
        problem, solution = record["problem"], record.get("solution")
        if not isinstance(problem, str):
            raise ValueError("problem: missing")
        answer = record.get("answer")
        if answer is None:
            answer = boxed_answer(solution or "")
        facts = {key: record[key] for key in ("level", "type", "subject", "unique_id") if record.get(key) is not None}
        return {
            "prompt": chat(problem, self.options) if problem.strip() else "",
            "ground_truth": answer,
            "data_source": MATH_500 if "unique_id" in record else DATA_SOURCE,
            "ability": "math",
            "question": problem,
            "answer": solution,
            "metadata": facts,
        }


def boxed_answer(solution: str) -> str:
    """What the last `\\boxed` (or `\\fbox`) of a solution holds, with nested braces; ValueError where there is none.

    `\\boxed 3` without braces holds the one word that follows. Escaped braces (`\\{`) do not count as braces.
    """
    for match in reversed(list(BOXED.finditer(solution))):
        rest = solution[match.end() :]
        if not rest.startswith("{"):
            word = re.match(r"[^\s$]+", rest)
            if word and rest[:1] and match.group()[-1:].isspace():
                return word.group().rstrip(".")
            continue
        held = _in_braces(rest)
        if held is not None:
            return held.strip()
    raise ValueError("solution: no \\boxed{} answer")


def _in_braces(text: str) -> str | None:
    """The content of the group that `text` begins with; None where it never closes."""
    depth, i = 0, 0
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[1:i]
        i += 1
    return None


def _by_subject(folder: Path, split: str) -> list[Path]:
    """Files of the layout <split>/<subject>/<number>.json, by subject and number."""
    root = folder / split if (folder / split).is_dir() else folder
    files = [path for path in root.glob("*/*.json") if path.stem.isdigit()]
    return sorted(files, key=lambda path: (path.parent.name, int(path.stem)))


def _subject(name: str) -> str:
    """A subject's words, so that `Counting & Probability` is the folder counting_and_probability."""
    return " ".join(word for word in re.split(r"[^a-z]+", name.lower()) if word not in ("", "and"))
