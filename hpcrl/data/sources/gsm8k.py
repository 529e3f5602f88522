"""GSM8K as it is published: parquet of the hub's openai/gsm8k, or JSON lines of {question, answer}."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcrl.config.seam import UserError
from hpcrl.config.sources import HUB_IDS
from hpcrl.data.sources.base import chat
from hpcrl.data.sources.file import FileSource
from hpcrl.data.sources.huggingface import dataset_folder, split_paths

DATA_SOURCE = "openai/gsm8k"


class GSM8K(FileSource):
    """The ground truth is the number after `####`, without commas."""

    def find(self) -> list[Path]:
        path = self.config.path or HUB_IDS["gsm8k"]
        folder = dataset_folder(path, self.options.revision, self.options.offline, self.where)
        return split_paths(folder, self.config.split or self.split, self.options.config, self.where)

    def check_columns(self) -> None:
        for file in self.files:
            gone = [name for name in ("question", "answer") if name not in file.columns]
            if gone and file.records:
                raise UserError(
                    f"{file.path} is not GSM8K: it has no column {gone[0]!r}; its columns: {', '.join(file.columns)}"
                )

    def wanted_columns(self) -> set[str]:
        return {"question", "answer"}

    def fields(self, record: dict[str, Any]) -> dict[str, Any]:
        question, answer = record["question"], record["answer"]
        if not isinstance(question, str) or not isinstance(answer, str):
            raise ValueError("question or answer: missing")
        return {
            "prompt": chat(question, self.options) if question.strip() else "",
            "ground_truth": final_number(answer),
            "data_source": DATA_SOURCE,
            "ability": "math",
            "question": question,
            "answer": answer,
        }


def final_number(answer: str) -> str:
    """The number after the last `####` of a solution; ValueError where there is none."""
    _, found, number = answer.rpartition("####")
    number = number.strip().replace(",", "").replace("$", "")
    if not found or not number:
        raise ValueError("answer: no number after ####")
    return number
