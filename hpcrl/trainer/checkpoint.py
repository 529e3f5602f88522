"""Checkpoints on disk: written beside, renamed, then pointed to; verified before they are read; kept by what is there.

checkpoints/global_step_N/actor/…              sharded, by torch.distributed.checkpoint
checkpoints/global_step_N/trainer.json         everything else that a resumed run needs
checkpoints/global_step_N/contents.json        size and CRC-32 of every file above
checkpoints/latest_checkpointed_iteration.txt  N
"""

from __future__ import annotations

import json
import logging
import shutil
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.config.seam import InfrastructureError, UserError
from hpcrl.utils.files import atomic_folder, write_json, write_text

logger = logging.getLogger(__name__)

POINTER = "latest_checkpointed_iteration.txt"
PREFIX = "global_step_"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was verified."""

    path: Path
    step: int
    trainer_state: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: where they are.
        keep: how many of the newest to keep; None: all.
    """

    def __init__(self, folder: Path, keep: int | None = None) -> None:
        self.folder, self.keep = folder, keep

    def save(self, step: int, trainer_state: dict[str, Any], write: Callable[[Path], None]) -> float:
        """Write a checkpoint; it is there as a whole, or not at all. Seconds that it took.

        Args:
            step: training steps done.
            trainer_state: JSON-able state of the trainer.
            write: puts the model's files into the folder that it is given.
        """
        start = time.perf_counter()
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_folder(self.folder / f"{PREFIX}{step}") as folder:
            write(folder)
            write_json(folder / "trainer.json", {"step": step} | trainer_state)
            write_json(folder / "contents.json", _contents(folder))
        write_text(self.folder / POINTER, str(step))
        self._drop_old()
        return time.perf_counter() - start

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; damaged ones are set aside, with the reason in the log."""
        for step in reversed(self.steps()):
            path = self.folder / f"{PREFIX}{step}"
            try:
                return self.open(path)
            except UserError as error:
                aside = path.with_name(f"damaged_{path.name}_{int(time.time())}")
                path.rename(aside)
                logger.warning("%s; it was set aside as %s, an older one is used", error, aside.name)
                write_text(self.folder / POINTER, str((self.steps() or [0])[-1]))
        return None

    def open(self, path: Path) -> Checkpoint:
        """Verify a checkpoint.

        Raises:
            UserError: it is not there, or damaged.
        """
        try:
            recorded = json.loads((path / "contents.json").read_text())
            state = json.loads((path / "trainer.json").read_text())
            found = _contents(path)
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError) as error:
            raise UserError(f"checkpoint {path} is not complete: {error}") from error
        except OSError as error:  # the disk does not answer: that says nothing about the checkpoint
            raise InfrastructureError(f"checkpoint {path} cannot be read: {error}") from error
        wrong = sorted(name for name in recorded if found.get(name) != recorded[name])
        if wrong:
            raise UserError(f"checkpoint {path} is damaged: {', '.join(wrong)} differ from what was written")
        return Checkpoint(path, int(state["step"]), state)

    def steps(self) -> list[int]:
        """Steps of the checkpoints on disk, oldest first; those still being written are left out."""
        if not self.folder.is_dir():
            return []
        names = (path.name.removeprefix(PREFIX) for path in self.folder.glob(f"{PREFIX}*") if path.is_dir())
        return sorted(int(name) for name in names if name.isdigit())

    def _drop_old(self) -> None:
        if self.keep is None:
            return
        for step in self.steps()[: -self.keep]:
            shutil.rmtree(self.folder / f"{PREFIX}{step}")


def _contents(folder: Path) -> dict[str, list[int]]:
    """Size and CRC-32 of every file below a folder, contents.json aside."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "contents.json")
    with ThreadPoolExecutor(max_workers=4) as pool:
        sums = list(pool.map(_checksum, paths))
    return {str(path.relative_to(folder)): [path.stat().st_size, crc] for path, crc in zip(paths, sums, strict=True)}


def _checksum(path: Path) -> int:
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(2**24):
            crc = zlib.crc32(block, crc)
    return crc
