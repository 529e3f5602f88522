"""Local files: parquet, JSON lines, JSON, CSV, with a mapping from our fields to their columns."""

from __future__ import annotations

import glob
import os
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcrl.config.columns import file_column, find_columns, missing_columns
from hpcrl.config.seam import UserError
from hpcrl.data.records import FORMATS, RecordFile, scan
from hpcrl.data.row import is_chat_text
from hpcrl.data.sources.base import RawRow, Source, chat


class FileSource(Source):
    """A source that reads files, one after another."""

    files: list[RecordFile]

    @abstractmethod
    def find(self) -> list[Path]:
        """The files, in order; fetches them if need be."""

    @abstractmethod
    def fields(self, record: dict[str, Any]) -> dict[str, Any]:
        """Our fields of a record."""

    def open(self) -> int:
        paths = self.find()
        if not paths:
            raise UserError(f"{self.where}: no file was found")
        self.files = [scan(path, getattr(self.options, "format", None)) for path in paths]
        self.check_columns()
        return sum(file.records for file in self.files)

    def check_columns(self) -> None:
        """Refuse files without what `fields` needs; only their first record is looked at, where they have no schema."""

    def wanted_columns(self) -> set[str] | None:
        """Top-level columns to decode; None: all."""
        return None

    def read(self, start: int, stop: int) -> Iterator[RawRow]:
        first, columns = 0, self.wanted_columns()
        for file in self.files:
            low, high = max(start - first, 0), min(stop - first, file.records)
            if low < high:
                for raw in file.read(low, high, columns):
                    yield self._with_fields(raw)
            first += file.records

    def _with_fields(self, raw: RawRow) -> RawRow:
        if raw.fields is None:
            return raw
        try:
            return RawRow(raw.place, self.fields(raw.fields))
        except (KeyError, TypeError, ValueError) as error:
            problem = f"no column {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
            return RawRow(raw.place, None, problem)

    def identity(self) -> dict[str, Any]:
        files = [{"file": str(file.path), "size": file.size, "modified_ns": file.modified} for file in self.files]
        return {"source": self.name, "path": self.config.path, "options": repr(self.options), "files": files}


class LocalFiles(FileSource):
    """`path` is a file, a folder or a glob; `columns` says where our fields are."""

    def find(self) -> list[Path]:
        if self.config.path is None:
            raise UserError(f"{self.where}.path: the source file needs a file, a folder or a glob")
        return local_files(self.config.path, self.where)

    @property
    def mapping(self) -> dict[str, str]:
        """Field -> column, of the fields that the files have."""
        if not hasattr(self, "_mapping"):
            self._mapping = self._find_mapping()
        return self._mapping

    def _find_mapping(self) -> dict[str, str]:
        first = next((file for file in self.files if file.columns), self.files[0])
        given = self.config.columns
        problems = missing_columns(given, first.columns, first.path, self.where)
        if problems and (given or any(file.records for file in self.files)):
            raise UserError(problems[0])
        return find_columns(given, first.columns)

    def check_columns(self) -> None:
        for file in self.files:
            if file.format in ("parquet", "csv") and file.columns:
                gone = missing_columns(self.config.columns, file.columns, file.path, self.where)
                if gone and file.records:
                    raise UserError(gone[0])
        self.has_messages = "messages" in self.mapping

    def wanted_columns(self) -> set[str]:
        return {file_column(column, self.files[0].columns) for column in self.mapping.values()}

    def fields(self, record: dict[str, Any]) -> dict[str, Any]:
        fields = {field: _at(record, column) for field, column in self.mapping.items()}
        prompt = fields.get("prompt")
        if isinstance(prompt, str) and prompt.strip() and not is_chat_text(prompt):
            fields["question"] = fields.get("question") or prompt
            fields["prompt"] = chat(prompt, self.options)
        if fields.get("data_source") is None:
            fields["data_source"] = self.default_data_source()
        return fields

    def default_data_source(self) -> str:
        return self.name


def _at(record: dict[str, Any], column: str) -> Any:
    """A column, or what a dotted path leads to; None where a mapping on the way is missing."""
    if column in record:
        return record[column]
    value: Any = record
    for part in column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def local_files(path: str, where: str) -> list[Path]:
    """The data files of a path: itself, those below a folder, or those that match a glob; sorted by name."""
    expanded = os.path.expanduser(path)
    if os.path.isfile(expanded):
        return [Path(expanded)]
    if os.path.isdir(expanded):
        found = [file for file in Path(expanded).rglob("*") if file.suffix.lower() in FORMATS and file.is_file()]
        found = [file for file in found if not any(part.startswith(".") for part in file.relative_to(expanded).parts)]
    else:
        found = [Path(name) for name in glob.glob(expanded, recursive=True) if os.path.isfile(name)]
    if not found:
        raise UserError(f"{where}.path: {path!r} is no file, no folder with data files, and no glob that matches any")
    return sorted(found)
