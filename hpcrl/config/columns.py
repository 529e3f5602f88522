"""Where a row's fields stand in a file, and the instant check that a file has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpcrl.config.data import SourceConfig
from hpcrl.config.keys import nearest
from hpcrl.config.messages import offer
from hpcrl.config.rewards import no_rule

DEFAULT_COLUMNS: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt",),
    "ground_truth": ("ground_truth", "reward_model.ground_truth"),
    "messages": ("messages",),
    "data_source": ("data_source",),
    "ability": ("ability",),
    "style": ("style", "reward_model.style"),
    "question": ("question", "extra_info.question"),
    "answer": ("answer", "extra_info.answer"),
    "agent_name": ("agent_name",),
    "need_tools_kwargs": ("need_tools_kwargs", "extra_info.need_tools_kwargs"),
    "tools_kwargs": ("tools_kwargs", "extra_info.tools_kwargs"),
    "interaction_kwargs": ("interaction_kwargs", "extra_info.interaction_kwargs"),
    "metadata": ("metadata", "extra_info.metadata"),
}
"""Where each field is looked for; a dot leads into a nested column, so that files in verl's layout need no mapping."""

ROW_FIELDS = tuple(DEFAULT_COLUMNS)
"""Our fields of a row: the keys of `columns`."""


def file_column(column: str, present: Sequence[str]) -> str:
    """The column of the file that a name or a dotted path leads into."""
    return column if column in present else column.split(".")[0]


def find_columns(given: Mapping[str, str], present: Sequence[str]) -> dict[str, str]:
    """Field -> column: what `columns` says, and the first default that is among the file's columns."""
    found = dict(given)
    for field, candidates in DEFAULT_COLUMNS.items():
        there = [column for column in candidates if file_column(column, present) in present]
        if field not in found and there:
            found[field] = there[0]
    return found


def missing_columns(given: Mapping[str, str], present: Sequence[str], file: Path, where: str) -> list[str]:
    """What a file lacks: columns that `columns` names, a prompt, a ground truth. One line each.

    Args:
        given: field -> column, of the source's config.
        present: the file's columns.
        where: the source's place in the config, for messages.
    """
    shown = ", ".join(present) or "none"
    problems = [
        f"{file} has no column {column!r} ({where}.columns.{field}); its columns: {shown}"
        for field, column in given.items()
        if file_column(column, present) not in present
    ]
    found = find_columns(given, present)
    problems += [
        f"{file} has no column {field!r}; its columns: {shown}. Say which one holds it: {where}.columns.{field}"
        for field in ("prompt", "ground_truth")
        if field not in found and "messages" not in found
    ]
    return problems


def source_file_problems(source: SourceConfig, where: str, file: Path, *, scored: bool = False) -> Iterator[str]:
    """What is wrong with a parquet file of a `file` source; other sources and formats are read by the prepare stage.

    Instant: only the file's schema is read. A file that is no parquet is one of the problems.

    Args:
        source: the source that reads the file.
        where: its place in the config.
        file: the file itself, which exists.
        scored: the rows are scored by the rule of their data_source (see `checks.scored_splits`).
    """
    if source.source != "file" or source.options.get("format", file.suffix.lower().lstrip(".")) != "parquet":
        return
    import pyarrow.parquet
    from pyarrow import ArrowException

    try:
        present = pyarrow.parquet.read_schema(file).names
    except (ArrowException, OSError) as error:
        yield f"{where}.path: {file} is no parquet file that can be read: {str(error).splitlines()[0]}"
        return
    problems = missing_columns(source.columns, present, file, where)
    yield from problems
    if scored and not problems and source.data_source is None and not _names_its_source(source, present):
        yield f"{where}.data_source: {file} has no such column, and {no_rule('file')}"


def _names_its_source(source: SourceConfig, present: Sequence[str]) -> bool:
    return "data_source" in find_columns(source.columns, present)


def unknown_fields(source: SourceConfig, where: str) -> Iterator[str]:
    """Keys of `columns` that are no fields of ours."""
    for field in source.columns:
        if field not in ROW_FIELDS:
            close = offer(nearest(field, ROW_FIELDS)) or f"; there are: {', '.join(ROW_FIELDS)}"
            yield f"{where}.columns.{field}: unknown field{close}"
