"""From sources to parquet: plan the shards, make them here or in workers, judge the result, write the card."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrl.config import Config
from hpcrl.config.seam import NoSpaceError, UserError
from hpcrl.data.card import card, readable, split_card
from hpcrl.data.fan_out import fan_out, make_executor
from hpcrl.data.layout import CARD
from hpcrl.data.lengths import PromptMeter
from hpcrl.data.shard import LengthPolicy, ShardReport, ShardTask, ShardWriter, SourceCount
from hpcrl.data.sources import Source, make_source
from hpcrl.utils.files import write_json, write_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preparation:
    """One preparation of all splits of a config."""

    config: Config
    out: Path
    load_tokenizer: Callable[[], PreTrainedTokenizerBase]
    """Picklable: workers call it, too."""
    log_folder: Path
    """Where workers' files go."""
    tools: list[dict[str, Any]] | None = None
    """Schemas that the chat template is given."""
    check: Callable[[], None] = field(default=lambda: None)
    """Raises when the stage is asked to stop."""
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)
    """Told (shards done, shards in all)."""

    def run(self) -> dict[str, Any]:
        """Make every split; returns the dataset card.

        Raises:
            UserError: unknown source or option, unreadable input, too many bad rows, overlong rows under
                `truncation: error`, or a split without rows.
        """
        if not self.config.prepare.splits:
            raise UserError("prepare.splits is empty: name at least one split with its sources, or drop the stage")
        self.out.mkdir(parents=True, exist_ok=True)
        splits = {split: self._plan(split) for split in self.config.prepare.splits}
        tasks = [task for split_tasks in splits.values() for task in split_tasks]
        writer = make_writer(self.config, self.load_tokenizer, self.tools, tasks)
        reports = self._make(tasks, writer)
        cards: dict[str, dict[str, Any]] = {}
        for split, split_tasks in splits.items():
            total = ShardReport(sources=[SourceCount() for _ in split_tasks[0].sources])
            for task in split_tasks:
                total.add(reports[tasks.index(task)])
            self._judge(split, total, split_tasks[0].policy)
            cards[split] = split_card(split_tasks, total)
            _log_split(split, cards[split])
        whole = card(cards, tasks[0].policy, writer.measured_by, self.config.seed)
        self._clear({task.name for task in tasks})
        write_text(self.out / "dataset_card.md", readable(whole))
        write_json(self.out / CARD, whole)
        return whole

    def _plan(self, split: str) -> list[ShardTask]:
        """The shards of a split: fixed by its inputs and `rows_per_shard` alone."""
        configs = self.config.prepare.splits[split]
        if not configs:
            raise UserError(f"prepare.splits.{split} is an empty list: name at least one source")
        sources: list[Source] = []
        rows: list[int] = []
        for position, source_config in enumerate(configs):
            source = make_source(source_config, split, position, self.config.seed)
            available = source.open()
            sources.append(source)
            rows.append(available if source_config.rows is None else min(available, source_config.rows))
            self.check()
        total, size = sum(rows), self.config.prepare.rows_per_shard
        count = max(1, -(-total // size))
        return [
            ShardTask(
                split=split,
                number=i,
                count=count,
                start=i * size,
                stop=min((i + 1) * size, total),
                sources=tuple(sources),
                source_rows=tuple(rows),
                out=self.out,
                policy=length_policy(self.config),
            )
            for i in range(count)
        ]

    def _make(self, tasks: list[ShardTask], writer: ShardWriter) -> list[ShardReport]:
        reports: dict[int, ShardReport] = {}

        def finished(number: int, report: ShardReport) -> None:
            reports[number] = report
            logger.info("%s: %d rows (%d of %d shards)", tasks[number], report.total("kept"), len(reports), len(tasks))
            self.progress(len(reports), len(tasks))

        self.progress(0, len(tasks))
        if self.config.prepare.num_workers == 1 or len(tasks) == 1:
            for number, task in enumerate(tasks):
                finished(number, writer.write(task, self.check))
        else:
            work = partial(_in_worker, self.config, self.load_tokenizer, self.tools)
            fan_out(work, tasks, make_executor(self.log_folder), self.config.prepare.num_workers, self.check, finished)
        return [reports[number] for number in range(len(tasks))]

    def _judge(self, split: str, report: ShardReport, policy: LengthPolicy) -> None:
        """Refuse a split that cannot be trained on."""
        where = f"prepare.splits.{split}"
        read, bad, overlong = report.total("read"), report.total("bad"), report.total("overlong")
        reasons = "; ".join(f"{rows} × {reason}" for reason, rows in report.bad.most_common(5))
        examples = "; ".join(f"{place}: {reason}" for place, reason in report.bad_examples[:5])
        if read and bad / read > self.config.prepare.max_bad_fraction:
            raise UserError(
                f"{where}: {bad} of {read} rows are bad, more than prepare.max_bad_fraction = "
                f"{self.config.prepare.max_bad_fraction}: {reasons}. The first: {examples}"
            )
        if overlong and policy.action == "refuse":
            raise UserError(f"{where}: " + _refusal(report, policy, read))
        if not report.total("kept"):
            raise UserError(
                f"{where}: no row is left of {read} read ({bad} bad, {overlong} too long){': ' * bool(bad)}{reasons}"
            )

    def _clear(self, keep: set[str]) -> None:
        """Remove what earlier attempts left: their other shards, and the notes by which they would be continued."""
        for path in [*self.out.glob("*.parquet"), *self.out.glob(".*.tmp")]:
            if path.name not in keep:
                path.unlink()
        shutil.rmtree(self.out / ".shards", ignore_errors=True)


def length_policy(config: Config) -> LengthPolicy:
    """What `data.filter_overlong_prompts` and `data.truncation` ask for."""
    data = config.data
    longest = config.sft.max_length if "sft" in config.workflow.stages else None
    action = "drop" if data.filter_overlong_prompts else "refuse" if data.truncation == "error" else "keep"
    return LengthPolicy(data.max_prompt_length, longest, action)  # type: ignore[arg-type]


def make_writer(
    config: Config,
    load_tokenizer: Callable[[], PreTrainedTokenizerBase],
    tools: list[dict[str, Any]] | None,
    tasks: list[ShardTask],
) -> ShardWriter:
    """The writer of these tasks' shards."""
    from hpcrl.utils.chat import ChatTokens

    tokenizer, kwargs = load_tokenizer(), config.data.apply_chat_template_kwargs
    if not tokenizer.chat_template:
        raise UserError("the tokenizer has no chat template: give a model that has been trained for chat")
    chat = ChatTokens(tokenizer, tools, kwargs) if any(task.with_messages for task in tasks) else None
    return ShardWriter(PromptMeter(tokenizer, tools, kwargs), chat)


def _in_worker(
    config: Config,
    load_tokenizer: Callable[[], PreTrainedTokenizerBase],
    tools: list[dict[str, Any]] | None,
    task: ShardTask,
) -> ShardReport:
    try:
        return make_writer(config, load_tokenizer, tools, [task]).write(task)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(f"no space left in {task.out}: {error}; free some and `resume`") from error
        raise


def _refusal(report: ShardReport, policy: LengthPolicy, read: int) -> str:
    shown = "; ".join(f"{place}: {tokens} tokens" for place, tokens in report.overlong_examples[:5])
    limits = f"data.max_prompt_length = {policy.max_prompt}"
    if policy.max_conversation and report.conversation_tokens:
        limits += f" or sft.max_length = {policy.max_conversation}"
    return (
        f"{report.total('overlong')} of {read} rows are longer than {limits} tokens (longest: {report.longest}), which "
        f"data.truncation = error refuses: {shown}. Raise the limit, set data.filter_overlong_prompts = true to drop "
        "them, or data.truncation to left, right or middle to cut them"
    )


def _log_split(split: str, value: dict[str, Any]) -> None:
    logger.info(
        "%s: %d rows of %d read, %d too long, %d bad, prompt tokens up to %s",
        split, value["rows"], value["read"], value["dropped"]["overlong"], value["bad"]["rows"],
        value["prompt_tokens"]["max"],
    )  # fmt: skip
    for place, reason in value["bad"]["examples"]:
        logger.warning("bad row, left out: %s: %s", place, reason)
