"""Records of one file, any range of them, streamed: parquet, JSON lines, a JSON array or object, CSV.

A file is scanned once for its number of records; in line-based formats the scan also marks byte offsets, so that a
range in the middle is found without reading what stands before it. A record that cannot be read is a record, too:
it comes with its place and what is wrong, so that nothing is lost and ranges stay what they are. A fault that hides
what follows it, as in the middle of a JSON array, refuses the file.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from hpcrl.config.seam import UserError
from hpcrl.config.sources import FileFormat
from hpcrl.data.sources.base import RawRow
from hpcrl.data.tables import open_parquet

FORMATS: dict[str, FileFormat] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
}
MARK_EVERY = 4096
PARQUET_BATCH = 256
_SHORT = 16
"""A JSON fault so near to the end of what has been read may be a word or number that goes on."""
csv.field_size_limit(sys.maxsize)


@dataclass(frozen=True)
class Mark:
    """Where a record of a line-based file begins."""

    record: int
    offset: int
    line: int


@dataclass(frozen=True)
class RecordFile:
    """A scanned file."""

    path: Path
    format: FileFormat
    records: int
    columns: tuple[str, ...]
    """Columns of the file; of JSON, the keys of the first record."""
    marks: tuple[Mark, ...]
    size: int
    modified: int
    """Nanoseconds since the epoch."""

    def read(self, start: int, stop: int, columns: set[str] | None = None) -> Iterator[RawRow]:
        """Records [start, stop) under their own column names.

        Args:
            columns: columns to decode, of parquet; None: all.
        """
        if self.format == "parquet":
            yield from _read_parquet(self.path, start, stop, columns)
            return
        mark = max((mark for mark in self.marks if mark.record <= start), key=lambda mark: mark.record)
        for number, record in enumerate(_records(self.path, self.format, mark), mark.record):
            if number >= stop:
                return
            if number >= start:
                yield record.raw(self.path)


def format_of(path: Path, given: FileFormat | None) -> FileFormat:
    """The format of a file; a .json file may hold JSON lines, an array or an object."""
    found = given or FORMATS.get(path.suffix.lower())
    if found is None:
        raise UserError(f"{path}: the format is not known by the suffix; it must be one of {', '.join(FORMATS)}")
    return "jsonl" if found == "json" and _has_json_lines(path) else found


def scan(path: Path, given: FileFormat | None = None) -> RecordFile:
    """Count the records of a file.

    Raises:
        UserError: missing, unreadable, of unknown format, or broken so that what follows cannot be told.
    """
    try:
        facts = path.stat()
        kind = format_of(path, given)
        if kind == "parquet":
            parquet = open_parquet(path)
            columns, records, marks = tuple(parquet.schema_arrow.names), parquet.metadata.num_rows, []
        else:
            columns, records, marks = _scan_text(path, kind)
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except (IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    return RecordFile(path, kind, records, columns, tuple(marks), facts.st_size, facts.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class _Record:
    value: dict[str, Any] | None
    problem: str
    line: int | None
    """Line of its beginning; None where lines mean nothing."""
    number: int
    end: Mark | None = None
    """Where the next record begins."""

    def raw(self, path: Path) -> RawRow:
        return RawRow(f"{path}:{self.line}" if self.line else f"{path}, record {self.number}", self.value, self.problem)


def _scan_text(path: Path, kind: FileFormat) -> tuple[tuple[str, ...], int, list[Mark]]:
    marks, count, columns = [Mark(0, 0, 1)], 0, ()
    for record in _records(path, kind, marks[0]):
        if not columns and record.value:
            columns = tuple(record.value)
        count += 1
        if record.end is not None and count % MARK_EVERY == 0:
            marks.append(record.end)
    return columns, count, marks


def _records(path: Path, kind: FileFormat, mark: Mark) -> Iterator[_Record]:
    reader: Callable[[IO[bytes], Mark], Iterator[_Record]] = {"jsonl": _json_lines, "csv": _csv, "json": _json}[kind]
    with open(path, "rb") as file:
        yield from reader(file, mark)


def _object(text: str) -> tuple[dict[str, Any] | None, str]:
    try:
        value = json.loads(text)
    except ValueError as error:
        return None, f"not JSON ({getattr(error, 'msg', error)})"
    except RecursionError:
        return None, "not JSON (nested too deeply)"
    return (value, "") if isinstance(value, dict) else (None, "a JSON value that is not an object")


def _decoded(line: bytes, first: bool) -> str | None:
    try:
        return line.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError:
        return None


def _json_lines(file: IO[bytes], mark: Mark) -> Iterator[_Record]:
    file.seek(mark.offset)
    number, offset = mark.record, mark.offset
    for line_number, line in enumerate(file, mark.line):
        offset += len(line)
        if not line.strip():
            continue
        text = _decoded(line, line_number == 1)
        value, problem = (None, "not UTF-8") if text is None else _object(text)
        yield _Record(value, problem, line_number, number, Mark(number + 1, offset, line_number + 1))
        number += 1


class _Lines:
    """Lines of a file for the csv module, with the place that it has come to."""

    def __init__(self, file: IO[bytes], mark: Mark) -> None:
        file.seek(mark.offset)
        self.file, self.offset, self.line, self.broken = file, mark.offset, mark.line, False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.file.readline()
        if not line:
            raise StopIteration
        first, self.offset, self.line = self.line == 1, self.offset + len(line), self.line + 1
        text = _decoded(line, first)
        self.broken = self.broken or text is None
        return line.decode("utf-8", errors="replace") if text is None else text


def _csv(file: IO[bytes], mark: Mark) -> Iterator[_Record]:
    lines = _Lines(file, Mark(0, 0, 1))
    try:
        header = next(csv.reader(lines, strict=True))
    except StopIteration:
        return
    except csv.Error as error:
        raise UserError(f"{file.name}: the CSV header cannot be read ({error})") from error
    if mark.record:
        lines = _Lines(file, mark)
    number, reader = mark.record, csv.reader(lines, strict=True)
    while True:
        line, offset, lines.broken = lines.line, lines.offset, False
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # an unclosed quote has swallowed the lines that follow: they are read again, each for itself
            lines = _Lines(file, Mark(number, offset, line))
            next(lines)
            value, problem = None, f"CSV that cannot be read ({error})"
            reader = csv.reader(lines, strict=True)
        else:
            if not values:
                continue
            value, problem = _named(header, values)
        if lines.broken:
            value, problem = None, "not UTF-8"
        yield _Record(value, problem, line, number, Mark(number + 1, lines.offset, lines.line))
        number += 1


def _named(header: list[str], values: list[str]) -> tuple[dict[str, Any] | None, str]:
    if len(values) != len(header):
        return None, f"{'too few' if len(values) < len(header) else 'too many'} values for the {len(header)} columns"
    return {name: value if value != "" else None for name, value in zip(header, values, strict=True)}, ""


def _has_json_lines(path: Path) -> bool:
    """Whether a .json file holds an object a line, as many hub data sets have it."""
    with open(path, "rb") as file:
        first = file.readline()
        while first and not first.strip():
            first = file.readline()
        text = _decoded(first, first=True)
        if text is None or not text.lstrip().startswith("{") or _object(text)[0] is None:
            return False
        return any(line.strip() for line in file)


def _json(file: IO[bytes], mark: Mark) -> Iterator[_Record]:
    """One object, or the elements of an array, decoded one after another from a buffer of bounded size."""
    del mark  # positions in an array are found by reading from its beginning
    buffer = _JsonBuffer(file)
    start = buffer.peek()
    if start == "":
        return
    if start != "[":
        value, problem = _object(buffer.rest())
        if "Extra data" in problem:
            raise UserError(f"{file.name}: neither one JSON object nor an array nor one object on each line")
        yield _Record(value, problem, None, 0)
        return
    buffer.skip()
    number = 0
    while (char := buffer.peek()) != "]":
        if char == ",":
            buffer.skip()
            continue
        try:
            value = buffer.value()
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file.name}: not JSON after record {number}; the file is cut or broken") from error
        is_object = isinstance(value, dict)
        yield _Record(
            value if is_object else None, "" if is_object else "a JSON value that is not an object", None, number
        )
        number += 1
    buffer.skip()
    if buffer.peek() != "":
        raise UserError(f"{file.name}: the JSON array ends after record {number}, and something follows it")


class _JsonBuffer:
    """Decodes JSON values from a stream of text."""

    def __init__(self, file: IO[bytes], chunk: int = 2**20) -> None:
        import io

        self.file, self.chunk = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape"), chunk
        self.text, self.at, self.ended = "", 0, False
        self.decoder = json.JSONDecoder()

    def _more(self) -> bool:
        new = self.file.read(self.chunk)
        self.text, self.at = self.text[self.at :] + new, 0
        self.ended = not new
        return bool(new)

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self._more():
                return ""

    def skip(self) -> None:
        self.at += 1

    def value(self) -> Any:
        """The next value; ValueError where there is none."""
        self.peek()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated string") or error.pos > len(self.text) - _SHORT
                if not unfinished or not self._more():
                    raise
                continue
            if end == len(self.text) and self._more():  # a number may go on
                continue
            self.at = end
            return value

    def rest(self) -> str:
        while self._more():
            pass
        return self.text[self.at :]


def _read_parquet(path: Path, start: int, stop: int, columns: set[str] | None) -> Iterator[RawRow]:
    parquet = open_parquet(path)
    wanted = None if columns is None else [name for name in parquet.schema_arrow.names if name in columns]
    groups, first, skipped = [], None, 0
    for group in range(parquet.metadata.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if skipped < stop and skipped + rows > start:
            groups.append(group)
            first = skipped if first is None else first
        skipped += rows
    if first is None:
        return
    number = first
    try:
        for batch in parquet.iter_batches(batch_size=PARQUET_BATCH, row_groups=groups, columns=wanted):
            if number + batch.num_rows > start and number < stop:
                low, high = max(start - number, 0), min(stop - number, batch.num_rows)
                for i, value in enumerate(batch.slice(low, high - low).to_pylist(), number + low):
                    yield RawRow(f"{path}, row {i}", value)
            number += batch.num_rows
            if number >= stop:
                return
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as parquet around row {number}: {error}") from error
