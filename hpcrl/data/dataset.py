"""Prompts for training, validation and evaluation, read from parquet."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from hpcrl.config.data import DataConfig
from hpcrl.config.seam import UserError
from hpcrl.data.lengths import PromptMeter
from hpcrl.data.row import JSON_FIELDS, BadRow, prompt_messages
from hpcrl.data.tables import ParquetRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


class PromptDataset:
    """Rows as rollouts and rewards take them.

    A row is a dict of raw_prompt (chat messages), uid (str, deterministic and unique in the data set), data_source,
    ability, reward_model {style, ground_truth}, extra_info and agent_name. data_source is what the column
    `data.reward_fn_key` holds, which stands under its own name, too. Free-form values that parquet holds as JSON text
    are Python objects again.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase | None,
        tools: list[dict[str, Any]] | None = None,
        max_samples: int = -1,
    ) -> None:
        """Args:
        files: parquet files, of the prepare stage or the user's own in verl's layout.
        config: names of columns, the limit of prompts and what to do beyond it.
        tokenizer: measures prompts where the prepare stage has not done it alike; None: nothing is measured.
        tools: schemas that the chat template is given.
        max_samples: only the first so many rows; -1: all.

        Raises:
            UserError: missing or unreadable file, missing column, prompts over the limit under `truncation: error`.
        """
        self.config = config
        needed = {config.prompt_key: "data.prompt_key", config.reward_fn_key: "data.reward_fn_key"}
        optional = ("reward_model", "extra_info", "ability", "agent_name")
        self._rows = ParquetRows(files, {**needed, "reward_model": "the ground truth of the reward"}, optional)
        self._uids = self._unique_ids()
        total = len(self._rows) if max_samples < 0 else min(max_samples, len(self._rows))
        self._kept = np.arange(total)
        self.dropped_overlong = 0
        if tokenizer is not None:
            self._apply_length_policy(PromptMeter(tokenizer, tools, config.apply_chat_template_kwargs), total)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self._kept[index])
        row = self._rows[number]
        try:
            return self._decoded(row, self._uids[number])
        except BadRow as error:
            raise UserError(f"{self._where(number)}: {error}") from None

    def _messages(self, row: dict[str, Any]) -> list[dict[str, str]]:
        return prompt_messages(row[self.config.prompt_key], self.config.prompt_key)

    def _decoded(self, row: dict[str, Any], uid: str) -> dict[str, Any]:
        extra_info = decoded_extra_info(row.get("extra_info"))
        key = self.config.reward_fn_key
        return {
            key: row[key],
            "raw_prompt": self._messages(row),
            "uid": uid,
            "data_source": row[key],
            "ability": row.get("ability"),
            "reward_model": _decoded_reward_model(row.get("reward_model"), extra_info),
            "extra_info": extra_info,
            "agent_name": row.get("agent_name"),
        }

    def _where(self, number: int) -> str:
        file, row = self._rows.place(number)
        return f"{self._rows.files[file]}, row {row}"

    def _unique_ids(self) -> list[str]:
        """split/index where those are unique, else file and row."""
        facts = pl.concat([pl.DataFrame(part) for part in self._rows.members("extra_info", ("split", "index"))])
        rows = pl.format("row/{}", pl.int_range(pl.len()))
        named = facts.select(pl.coalesce(pl.format("{}/{}", "split", "index"), rows)).to_series()
        return (facts.select(rows).to_series() if named.is_duplicated().any() else named).to_list()

    def _apply_length_policy(self, meter: PromptMeter, total: int) -> None:
        limit = self.config.max_prompt_length
        if self.config.truncation != "error" and not self.config.filter_overlong_prompts:
            return
        fingerprint = meter.fingerprint()
        kept, overlong = [], []
        for first, rows in self._rows.batches(1024, [self.config.prompt_key, "extra_info"]):
            rows = rows[: max(total - first, 0)]
            for i, length in enumerate(self._lengths(meter, fingerprint, first, rows)):
                if isinstance(length, str):
                    raise UserError(f"{self._where(first + i)}: {length}")
                (kept if length <= limit else overlong).append((first + i, length))
        if overlong and not self.config.filter_overlong_prompts:
            raise UserError(self._refusal(overlong, total))
        self.dropped_overlong = len(overlong)
        if overlong:
            logger.info("dropped %d of %d prompts over %d tokens (data.max_prompt_length)", len(overlong), total, limit)
        if not kept:
            raise UserError(f"no prompt of {self._rows.files[0]} is within data.max_prompt_length = {limit} tokens")
        self._kept = np.array([number for number, _ in kept], dtype=np.int64)

    def _refusal(self, overlong: list[tuple[int, int]], total: int) -> str:
        shown = "; ".join(f"{self._where(number)}: {length} tokens" for number, length in overlong[:5])
        longest = max(length for _, length in overlong)
        return (
            f"{len(overlong)} of {total} prompts are longer than data.max_prompt_length = "
            f"{self.config.max_prompt_length} tokens (longest: {longest}), which data.truncation = error refuses: "
            f"{shown}. Raise data.max_prompt_length, set data.filter_overlong_prompts = true to drop them, "
            "or data.truncation to left, right or middle to cut them"
        )

    def _lengths(
        self, meter: PromptMeter, fingerprint: str, first: int, rows: list[dict[str, Any]]
    ) -> Sequence[int | str]:
        """What the prepare stage measured, when it measured by the same tokenizer, template and tools."""
        if not rows:
            return []
        if self._rows.metadata[self._rows.place(first)[0]].get("prompt_tokens_by") == fingerprint:
            return [row["extra_info"]["prompt_tokens"] for row in rows]
        prompts = []
        for i, row in enumerate(rows):
            try:
                prompts.append(self._messages(row))
            except BadRow as error:
                raise UserError(f"{self._where(first + i)}: {error}") from None
        return meter.lengths(prompts)


def decoded_extra_info(value: Any) -> dict[str, Any]:
    """extra_info with its JSON texts as objects, and without the nulls by which parquet fills up tools_kwargs."""
    info = dict(value) if isinstance(value, Mapping) else {}
    for field in JSON_FIELDS:
        if isinstance(info.get(field), str):
            try:
                info[field] = json.loads(info[field])
            except ValueError:
                raise BadRow(f"extra_info.{field}: text that is not JSON") from None
    if isinstance(info.get("tools_kwargs"), Mapping):
        info["tools_kwargs"] = {tool: kw for tool, kw in info["tools_kwargs"].items() if kw is not None}
    elif "tools_kwargs" in info:
        info["tools_kwargs"] = {}
    return info


def _decoded_reward_model(value: Any, extra_info: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping) or "ground_truth" not in value:
        raise BadRow("reward_model: not a mapping with a ground_truth")
    reward_model = dict(value)
    if extra_info.pop("ground_truth_is_json", None):
        reward_model["ground_truth"] = json.loads(reward_model["ground_truth"])
    return reward_model
