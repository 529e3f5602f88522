"""Records of a run: metrics.jsonl, rollouts as parquet, the console, and wandb when configured."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from hpcrl.config import to_dict
from hpcrl.stage import StageJob
from hpcrl.utils.files import write_text

logger = logging.getLogger(__name__)


class Tracking:
    """Writes each step's metrics once, however often the run was interrupted."""

    def __init__(self, job: StageJob, path: Path, first_step: int, total_steps: int) -> None:
        """Open the records at `path`; lines of steps from `first_step` on, which will be made again, are taken back."""
        self.path, self.total_steps = path, total_steps
        self.attempt = job.attempt.number if job.attempt.path.name.isdigit() else 0
        self._loggers = job.config.trainer.logger
        self._started = time.monotonic()
        self._first_step = first_step
        _keep_steps_before(self.path, first_step)
        self._wandb = _start_wandb(job) if "wandb" in self._loggers else None

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record one step: a line of metrics.jsonl, flushed to disk, and a line on the console."""
        line = {"step": step, "attempt": self.attempt} | metrics
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if self._wandb is not None:
            self._wandb.log(metrics, step=step)
        if "console" in self._loggers:
            logger.info("%s", self._console_line(step, metrics))

    def close(self) -> None:
        """Finish the trackers."""
        if self._wandb is not None:
            self._wandb.finish()

    def _console_line(self, step: int, metrics: dict[str, float]) -> str:
        shown = {
            "loss": metrics.get("train/loss"),
            "reward": metrics.get("critic/rewards/mean"),
            "length": metrics.get("response_length/mean"),
            "kl": metrics.get("actor/ppo_kl"),
            "s/step": metrics.get("timing_s/step"),
        } | {name.removeprefix("val-core/"): value for name, value in metrics.items() if name.startswith("val-core/")}
        values = "  ".join(f"{name} {value:.4g}" for name, value in shown.items() if value is not None)
        return f"step {step}/{self.total_steps}  {values}  ETA {self._eta(step)}"

    def _eta(self, step: int) -> str:
        done = step - self._first_step + 1
        if step < self._first_step or done < 1 or step == 0:
            return "?"
        seconds = int((time.monotonic() - self._started) / done * (self.total_steps - step))
        return f"{seconds // 3600}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"


def write_rollouts(path: Path, rows: dict[str, list[Any]]) -> None:
    """Write a step's rollouts as parquet, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(pa.table(rows), temporary, compression="zstd")
    os.replace(temporary, path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Lines of a metrics.jsonl; a last line that was cut off by a kill is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            logger.warning("%s: a line that is not whole was left out", path)
    return lines


def _keep_steps_before(path: Path, first_step: int) -> None:
    lines = read_metrics(path)
    kept = [line for line in lines if line["step"] < first_step]
    if lines != kept or (path.exists() and not path.read_text().endswith("\n")):
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))


def _start_wandb(job: StageJob) -> Any:
    import wandb

    trainer, run_dir = job.config.trainer, job.folder.path
    # One tracked run a stage, over all its attempts: the id is the run folder's.
    return wandb.init(
        project=trainer.project_name,
        group=trainer.experiment_name,
        job_type=job.name,
        name=f"{run_dir.name} {job.name}",
        id=f"{trainer.experiment_name}-{run_dir.name}-{job.name}".replace("/", "-")[-128:],
        resume="allow",
        mode=os.environ.get("WANDB_MODE", "offline"),
        dir=str(run_dir),
        config=to_dict(job.config),
    )
