"""Where a training loop is, and how it gets back there: saving, resuming, and leaving in time."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrl.data.loader import ResumableLoader
from hpcrl.stage import StageJob
from hpcrl.trainer.checkpoint import Checkpoint, CheckpointStore
from hpcrl.trainer.ppo.ray_worker_group import RayWorkerGroup
from hpcrl.utils.files import atomic_folder

logger = logging.getLogger(__name__)

MARGIN = 1.5
"""Times the measured seconds of a step, its validation and a save: what must be left before the deadline."""


@dataclass
class Progress:
    """The steps done, on disk and in memory, of a loop over a loader with workers that hold the model."""

    job: StageJob
    group: RayWorkerGroup
    loader: ResumableLoader
    store: CheckpointStore
    total_steps: int
    step: int = 0
    saved_step: int | None = None
    boundary: dict[str, Any] = field(default_factory=dict)
    """The loader's state after `step`, whatever was drawn from it since."""
    seconds: dict[str, float] = field(default_factory=dict)
    """The last measured seconds of a step, a validation, a save."""

    def __post_init__(self) -> None:
        self.boundary = self.loader.state_dict()

    @property
    def done(self) -> bool:
        return self.step >= self.total_steps

    def advance(self, seconds: float) -> None:
        """A step was done, in so many seconds."""
        self.step += 1
        self.boundary = self.loader.state_dict()
        self.took("step", seconds)

    def took(self, what: str, seconds: float) -> None:
        """Keep the stop's margin at what is needed to end in order."""
        self.seconds[what] = seconds
        self.job.stop.margin = MARGIN * sum(self.seconds.values())

    def save(self, **state: Any) -> None:
        """Write a checkpoint of the steps done, unless there is one."""
        if self.step == 0 or self.saved_step == self.step:
            return
        self.job.heartbeat("save", self.step, self.total_steps)
        state |= {"loader": self.boundary, "seconds": self.seconds, "world_size": self.group.world_size}
        self.took("save", self.store.save(self.step, state, self._write_actor))
        self.saved_step = self.job.last_saved_step = self.step
        logger.info("saved step %d in %.1f s", self.step, self.seconds["save"])

    def resume(self, checkpoint: Checkpoint | None) -> dict[str, Any] | None:
        """Go back to a checkpoint; its trainer state, or None where there is none."""
        state = None
        if checkpoint is not None:
            self.job.heartbeat("load", checkpoint.step, self.total_steps)
            self.group.execute_all("load_checkpoint", str(checkpoint.path / "actor"))
            state = checkpoint.trainer_state
            self.loader.load_state_dict(state["loader"])
            self.boundary = self.loader.state_dict()
            self.step = self.saved_step = self.job.last_saved_step = checkpoint.step
            for what, seconds in state["seconds"].items():
                self.took(what, seconds)
            if state["world_size"] != self.group.world_size:
                logger.warning(
                    "the checkpoint was written by %d ranks, now there are %d: training goes on, but not bit for bit",
                    state["world_size"],
                    self.group.world_size,
                )
            logger.info("continuing after step %d of %d", self.step, self.total_steps)
        self.job.first_step = self.step + 1
        return state

    def export(self) -> None:
        """Leave the model in the stage's out/model, whole or not at all."""
        self.job.heartbeat("export", self.step, self.total_steps)
        with atomic_folder(self.job.out / "model") as folder:
            self.group.execute_all("export", str(folder))
        logger.info("the model is in %s", self.job.out / "model")

    def _write_actor(self, folder: Path) -> None:
        (folder / "actor").mkdir()
        self.group.execute_all("save_checkpoint", str(folder / "actor"))
