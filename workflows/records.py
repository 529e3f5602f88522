"""One reading of a run folder, for the state functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrl.config.seam import AttemptFolder
from workflows.attempts import JobRecord, read_json, stop_text
from workflows.completion import damage, read_marker
from workflows.processes import ProcessId
from workflows.run import Run
from workflows.stages import Stage
from workflows.state import AttemptView, RunView, StageView

TAIL = 256 * 1024
"""Bytes at the end of metrics.jsonl that are read."""


def read_view(run: Run) -> RunView:
    """What the disk says of a run now."""
    driver = ProcessId.from_dict(read_json(run.driver))
    return RunView(
        name=run.name,
        path=str(run.path),
        driver_alive=driver.alive() if driver else False,
        stages=tuple(_stage(run, stage) for stage in run.stages),
        metrics=tuple(last_metrics(run.folder.metrics)),
    )


def _stage(run: Run, stage: Stage) -> StageView:
    folder = run.folder.stage(stage.name)
    attempts = folder.attempts()
    marker = read_marker(folder.done)
    trouble = damage(marker, folder.out, None) if marker else None
    if marker is None and folder.done.exists():
        trouble = "DONE cannot be read"
    return StageView(
        name=stage.name,
        parents=stage.parents,
        done=marker is not None and trouble is None,
        trouble=trouble,
        attempt=_attempt(attempts[-1]) if attempts else None,
    )


def _attempt(attempt: AttemptFolder) -> AttemptView:
    job = JobRecord.read(attempt)
    return AttemptView(
        number=attempt.number,
        alive=job.process.alive() if job and job.process else False,
        record=read_json(attempt.exit_record),
        heartbeat=read_json(attempt.heartbeat),
        stop=stop_text(attempt),
    )


def last_metrics(path: Path) -> list[Mapping[str, Any]]:
    """The newest lines of a metrics file, oldest first; a line cut off by the reading or a crash is left out."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - TAIL, 0))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except (json.JSONDecodeError, UnicodeDecodeError):
            continue
    return [line for line in found if isinstance(line, dict)]
