"""Where the prepare stage puts what it makes."""

from __future__ import annotations

import json
from pathlib import Path

from hpcrl.config.seam import RunFolder, UserError

CARD = "dataset_card.json"


def shard_name(split: str, number: int, count: int) -> str:
    """File name of one shard."""
    return f"{split}-{number:05d}-of-{count:05d}.parquet"


def split_files(folder: RunFolder, split: str) -> list[Path]:
    """The parquet files of a split that the prepare stage made, in order.

    Raises:
        UserError: the stage has not finished, made no such split, or a file of it is gone.
    """
    out = folder.stage("prepare").out
    try:
        splits = json.loads((out / CARD).read_text(encoding="utf-8"))["splits"]
    except FileNotFoundError:
        raise UserError(
            f"no {CARD} in {out}: the prepare stage has not finished; add it to workflow.stages, "
            "or name parquet files in data.train_files, data.val_files, sft.train_files or evaluate.files"
        ) from None
    if split not in splits:
        raise UserError(
            f"the prepare stage made no split {split!r}, only {', '.join(splits)}: add prepare.splits.{split}, "
            "or name parquet files in data.train_files, data.val_files, sft.train_files or evaluate.files"
        )
    files = [out / name for name in splits[split]["files"]]
    gone = [file.name for file in files if not file.exists()]
    if gone:
        raise UserError(f"{', '.join(gone)} of split {split!r} is missing in {out}: run the prepare stage again")
    return files
