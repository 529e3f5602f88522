"""Parquet files as rows that are found by number, without holding them in memory."""

from __future__ import annotations

import errno
import json
import logging
import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hpcrl.config.seam import NoSpaceError, UserError

logger = logging.getLogger(__name__)

IN_MEMORY_BYTES = 64 * 2**20
"""Files that are smaller than this when uncompressed are kept in memory; larger ones are mapped from a scratch file."""


def open_parquet(path: str | Path) -> pq.ParquetFile:
    """A parquet file, opened by memory map.

    Raises:
        UserError: it is missing or not parquet.
    """
    try:
        return pq.ParquetFile(path, memory_map=True)
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as parquet: {error}") from error


def check_columns(path: str | Path, present: Sequence[str], needed: dict[str, str]) -> None:
    """Refuse a file without a needed column.

    Args:
        needed: column -> the setting that names it, or why it is needed.

    Raises:
        UserError: naming file, column, setting and the columns that are there.
    """
    for column, reason in needed.items():
        if column not in present:
            raise UserError(f"{path} has no column {column!r} ({reason}); its columns: {', '.join(present)}")


class ParquetRows:
    """The rows of one or several parquet files, of which the columns asked for are read."""

    def __init__(self, files: Sequence[str | Path], needed: dict[str, str], optional: Sequence[str] = ()) -> None:
        """Args:
        files: parquet files, in order.
        needed: column -> reason, refused when missing.
        optional: columns that are read where they are there.
        """
        if not files:
            raise UserError("no parquet files were given")
        self.files = [Path(file) for file in files]
        self.metadata: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._starts: list[int] = []
        self._length = 0
        for file in self.files:
            parquet = open_parquet(file)
            present = parquet.schema_arrow.names
            check_columns(file, present, needed)
            columns = [name for name in present if name in needed or name in optional]
            self.metadata.append(_own_metadata(parquet))
            self._starts.append(self._length)
            self._tables.append(_mapped(parquet, columns, file))
            self._length += self._tables[-1].num_rows

    def __len__(self) -> int:
        return self._length

    def place(self, index: int) -> tuple[int, int]:
        """(file number, row in it) of a row."""
        number = bisect_right(self._starts, index) - 1
        while self._tables[number].num_rows == 0:  # an empty file shares its start with the next
            number -= 1
        return number, index - self._starts[number]

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._length:
            raise IndexError(index)
        number, row = self.place(index)
        return self._tables[number].slice(row, 1).to_pylist()[0]

    def batches(self, size: int, columns: Sequence[str]) -> Any:
        """(first row's number, rows) of consecutive parts, with only these columns where they are there."""
        for number, table in enumerate(self._tables):
            part = table.select([name for name in columns if name in table.column_names])
            first = self._starts[number]
            for start in range(0, part.num_rows, size):
                yield first + start, part.slice(start, size).to_pylist()

    def members(self, column: str, names: Sequence[str]) -> Iterator[dict[str, pa.ChunkedArray]]:
        """Members of a struct column as columns of text, file by file; nulls where a file has no such member."""
        for table in self._tables:
            values = table[column] if column in table.column_names else None
            kind = values.type if values is not None else pa.null()
            there = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
            yield {
                name: pc.cast(pc.struct_field(values, name), pa.string())
                if name in there and not pa.types.is_nested(there[name])
                else pa.chunked_array([pa.nulls(table.num_rows, pa.string())])
                for name in names
            }


def _own_metadata(parquet: pq.ParquetFile) -> dict[str, Any]:
    """What the prepare stage noted in the file; empty for other files."""
    text = (parquet.schema_arrow.metadata or {}).get(b"hpcrl")
    return json.loads(text) if text else {}


def _mapped(parquet: pq.ParquetFile, columns: list[str], path: Path) -> pa.Table:
    size = sum(parquet.metadata.row_group(i).total_byte_size for i in range(parquet.metadata.num_row_groups))
    try:
        if size <= IN_MEMORY_BYTES:
            return parquet.read(columns=columns)
        return _spill(parquet, columns)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(
                f"no space in {tempfile.gettempdir()} to map {path}: free some, or set TMPDIR"
            ) from error
        raise UserError(f"{path} cannot be read as parquet: {error}") from error
    except pa.ArrowException as error:
        raise UserError(f"{path} cannot be read as parquet: {error}") from error


def _spill(parquet: pq.ParquetFile, columns: list[str]) -> pa.Table:
    """Decode once into a scratch file, batch by batch, and map that: the page cache holds it, not this process."""
    descriptor, scratch = tempfile.mkstemp(prefix="hpcrl-rows-", suffix=".arrow")
    try:
        with os.fdopen(descriptor, "wb") as file:
            writer = None
            for batch in parquet.iter_batches(batch_size=4096, columns=columns):
                writer = writer or pa.ipc.new_file(file, batch.schema)
                writer.write_batch(batch)
            if writer is None:
                return parquet.read(columns=columns)
            writer.close()
        return pa.ipc.open_file(pa.memory_map(scratch)).read_all()
    finally:
        os.unlink(scratch)  # the mapping keeps it until the process ends
