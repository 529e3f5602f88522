"""One shard: raw rows in, validated and measured rows out, and a report in which every row read is accounted for."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from hpcrl.config.seam import UserError
from hpcrl.data.layout import shard_name
from hpcrl.data.row import BadRow, before_first_answer, row_hash, schema, validate
from hpcrl.data.sft import encode_conversation
from hpcrl.data.sources.base import RawRow, Source
from hpcrl.utils.files import sync_folder, write_json

if TYPE_CHECKING:
    from hpcrl.data.lengths import PromptMeter
    from hpcrl.utils.chat import ChatTokens

FORMAT = 1
"""Raised when the rows or the files that this code writes change."""
CHUNK = 512
"""Rows that are held in memory at a time."""
EXAMPLES = 10


@dataclass(frozen=True)
class LengthPolicy:
    """What is done with rows that are too long."""

    max_prompt: int
    """Longest prompt, in tokens."""
    max_conversation: int | None
    """Longest conversation of a row with messages, in tokens; None: any."""
    action: Literal["drop", "refuse", "keep"]
    """Leave them out, end the stage, or keep them (they are cut when they are loaded)."""

    def too_long(self, prompt: int, conversation: int | None) -> bool:
        long_prompt = prompt > self.max_prompt
        return long_prompt or bool(self.max_conversation and conversation and conversation > self.max_conversation)


@dataclass(frozen=True)
class ShardTask:
    """Raw rows [start, stop) of a split, whose sources follow one another."""

    split: str
    number: int
    count: int
    start: int
    stop: int
    sources: tuple[Source, ...]
    source_rows: tuple[int, ...]
    out: Path
    policy: LengthPolicy

    def __str__(self) -> str:
        return f"shard {self.name}"

    @property
    def name(self) -> str:
        return shard_name(self.split, self.number, self.count)

    @property
    def with_messages(self) -> bool:
        return any(source.has_messages for source in self.sources)

    def rows(self) -> Iterator[tuple[int, int, RawRow]]:
        """(index in the split, number of the source, raw row)."""
        first = 0
        for number, (source, rows) in enumerate(zip(self.sources, self.source_rows, strict=True)):
            start, stop = max(self.start - first, 0), min(self.stop - first, rows)
            if start < stop:
                for i, raw in enumerate(source.read(start, stop), first + start):
                    yield i, number, raw
            first += rows

    def fingerprint(self, measured_by: str) -> str:
        """What the shard's content depends on."""
        parts = [
            FORMAT, self.split, self.start, self.stop, self.source_rows, measured_by, asdict(self.policy),
            [[source.identity(), repr(source.config)] for source in self.sources],
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


@dataclass
class SourceCount:
    """read = kept + overlong + bad."""

    read: int = 0
    kept: int = 0
    overlong: int = 0
    bad: int = 0


@dataclass
class ShardReport:
    """What became of the rows. Reports of consecutive shards add up to the report of their union."""

    sources: list[SourceCount]
    bad: Counter[str] = field(default_factory=Counter)
    """Reason -> rows."""
    bad_examples: list[tuple[str, str]] = field(default_factory=list)
    """The first bad rows: place, reason."""
    overlong_examples: list[tuple[str, int]] = field(default_factory=list)
    """The first rows that are too long: place, tokens."""
    prompt_tokens: Counter[int] = field(default_factory=Counter)
    """Length of a kept prompt -> rows."""
    conversation_tokens: Counter[int] = field(default_factory=Counter)
    """Length of a kept conversation -> rows."""
    longest: int = 0
    """Tokens of the longest row that is too long."""
    content: int = 0
    """Sum of the kept rows' hashes, modulo 2**256."""

    def total(self, what: Literal["read", "kept", "overlong", "bad"]) -> int:
        return sum(getattr(count, what) for count in self.sources)

    def add(self, other: ShardReport) -> None:
        """Add the report of the shard that follows."""
        for mine, its in zip(self.sources, other.sources, strict=True):
            for key, value in asdict(its).items():
                setattr(mine, key, getattr(mine, key) + value)
        self.bad.update(other.bad)
        self.bad_examples = (self.bad_examples + other.bad_examples)[:EXAMPLES]
        self.overlong_examples = (self.overlong_examples + other.overlong_examples)[:EXAMPLES]
        self.prompt_tokens.update(other.prompt_tokens)
        self.conversation_tokens.update(other.conversation_tokens)
        self.longest = max(self.longest, other.longest)
        self.content = (self.content + other.content) % 2**256

    def to_dict(self) -> dict[str, Any]:
        """JSON values, from which `from_dict` makes an equal report."""
        return {
            "sources": [asdict(count) for count in self.sources],
            "bad": dict(self.bad),
            "bad_examples": self.bad_examples,
            "overlong_examples": self.overlong_examples,
            "longest": self.longest,
            "prompt_tokens": sorted(self.prompt_tokens.items()),
            "conversation_tokens": sorted(self.conversation_tokens.items()),
            "content": f"{self.content:064x}",
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> ShardReport:
        return cls(
            sources=[SourceCount(**count) for count in value["sources"]],
            bad=Counter(value["bad"]),
            bad_examples=[(place, reason) for place, reason in value["bad_examples"]],
            overlong_examples=[(place, tokens) for place, tokens in value["overlong_examples"]],
            prompt_tokens=Counter(dict(value["prompt_tokens"])),
            conversation_tokens=Counter(dict(value["conversation_tokens"])),
            longest=value["longest"],
            content=int(value["content"], 16),
        )


class ShardWriter:
    """Makes shards with one tokenizer."""

    def __init__(self, meter: PromptMeter, chat: ChatTokens | None) -> None:
        """Args:
        meter: measures prompts.
        chat: measures conversations; None where no split has any.
        """
        self.meter, self.chat = meter, chat
        self.measured_by = meter.fingerprint()

    def write(self, task: ShardTask, check: Callable[[], None] = lambda: None) -> ShardReport:
        """Write the shard's parquet file, atomically, or find that an earlier attempt did.

        Args:
            check: called every few hundred rows; raises to stop.
        """
        note, fingerprint = task.out / ".shards" / f"{task.name}.json", task.fingerprint(self.measured_by)
        done = finished_report(note, fingerprint, task.out / task.name)
        if done is not None:
            return done
        report = ShardReport(sources=[SourceCount() for _ in task.sources])
        metadata = {"prompt_tokens_by": self.measured_by, "split": task.split}
        arrow_schema = schema(task.with_messages).with_metadata({"hpcrl": json.dumps(metadata)})
        path = task.out / task.name
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with pq.ParquetWriter(temporary, arrow_schema, compression="zstd") as writer:
                rows = task.rows()
                while chunk := list(islice(rows, CHUNK)):
                    check()
                    kept = self._chunk(task, chunk, report)
                    if kept:
                        writer.write_batch(pa.RecordBatch.from_pylist(kept, schema=arrow_schema))
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(task.out)
        size = path.stat().st_size
        write_json(note, {"fingerprint": fingerprint, "size": size, "report": report.to_dict()})
        return report

    def _chunk(
        self, task: ShardTask, chunk: list[tuple[int, int, RawRow]], report: ShardReport
    ) -> list[dict[str, Any]]:
        """The rows to keep, in order; every row of the chunk is counted in the report, once."""
        outcomes: list[dict[str, Any] | str] = []
        for index, number, raw in chunk:
            try:
                outcomes.append(validate(raw, task.sources[number], task.split, index))
            except BadRow as error:
                outcomes.append(str(error))
        measured = iter(self._measure([row for row in outcomes if not isinstance(row, str)]))
        kept = []
        for (_, number, raw), row in zip(chunk, outcomes, strict=True):
            lengths = row if isinstance(row, str) else next(measured)
            count = report.sources[number]
            count.read += 1
            if isinstance(row, str) or isinstance(lengths, str):
                count.bad += 1
                report.bad[str(lengths)] += 1
                report.bad_examples = [*report.bad_examples, (raw.place, str(lengths))][:EXAMPLES]
            elif task.policy.action != "keep" and task.policy.too_long(*lengths):
                count.overlong += 1
                longest = max(lengths[0], lengths[1] or 0)
                report.longest = max(report.longest, longest)
                report.overlong_examples = [*report.overlong_examples, (raw.place, longest)][:EXAMPLES]
            else:
                count.kept += 1
                kept.append(self._finish(row, *lengths, report))
        return kept

    @staticmethod
    def _finish(row: dict[str, Any], prompt: int, whole: int | None, report: ShardReport) -> dict[str, Any]:
        row["extra_info"]["prompt_tokens"] = prompt
        report.prompt_tokens[prompt] += 1
        if whole is not None:
            report.conversation_tokens[whole] += 1
        report.content = (report.content + row_hash(row)) % 2**256
        return row

    def _measure(self, rows: list[dict[str, Any]]) -> list[tuple[int, int | None] | str]:
        """(tokens of the prompt, tokens of the conversation if there is one) of each row; text: what is wrong."""
        whole: list[int | str | None] = [None] * len(rows)
        prompts: dict[int, int | str] = {}
        for i, row in enumerate(rows):
            if self.chat is None or "messages" not in row:
                continue
            try:
                tokens = encode_conversation(row["messages"], self.chat)
            except (BadRow, UserError) as error:
                whole[i] = str(error)
                continue
            whole[i] = len(tokens["input_ids"])
            if row["prompt"] == before_first_answer(row["messages"]):
                prompts[i] = tokens["loss_mask"].index(1)
        rest = [i for i in range(len(rows)) if i not in prompts]
        prompts.update(zip(rest, self.meter.lengths([rows[i]["prompt"] for i in rest]), strict=True))
        return [_lengths_or_problem(prompts[i], whole[i]) for i in range(len(rows))]


def _lengths_or_problem(prompt: int | str, whole: int | str | None) -> tuple[int, int | None] | str:
    if isinstance(whole, str):
        return whole
    return prompt if isinstance(prompt, str) else (prompt, whole)


def finished_report(note: Path, fingerprint: str, path: Path) -> ShardReport | None:
    """The report of a shard that an earlier attempt finished from the same inputs, if its file is as it was left."""
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
        if found["fingerprint"] == fingerprint and found["size"] == path.stat().st_size:
            return ShardReport.from_dict(found["report"])
    except (FileNotFoundError, ValueError, KeyError):  # never finished, or by code that noted other things
        return None
    return None
