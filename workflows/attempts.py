"""Attempts of a stage, as their folders record them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.config.seam import AttemptFolder, ExitCode, write_json
from workflows.budget import Budget, Ended, Next, follow
from workflows.processes import ProcessId
from workflows.run import Run
from workflows.stages import Stage


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object; None when the file is absent or not whole."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class JobRecord:
    """job.json of an attempt: who runs it, and on what."""

    process: ProcessId | None
    submission: str
    fingerprint: str
    ingredients: Mapping[str, Any]
    started: float

    @classmethod
    def read(cls, attempt: AttemptFolder) -> JobRecord | None:
        raw = read_json(attempt.path / "job.json")
        if raw is None:
            return None
        return cls(
            process=ProcessId.from_dict(raw.get("process")),
            submission=str(raw.get("submission")),
            fingerprint=str(raw.get("fingerprint")),
            ingredients=raw.get("ingredients") or {},
            started=float(raw.get("started") or 0),
        )

    def write(self, attempt: AttemptFolder) -> None:
        process = self.process.to_dict() if self.process else None
        write_json(attempt.path / "job.json", {**self.__dict__, "process": process})


def stop_text(attempt: AttemptFolder) -> str | None:
    try:
        return attempt.stop.read_text().strip()
    except FileNotFoundError:
        return None


def saved_step(run: Run, stage: Stage) -> int | None:
    """The newest step that the stage has on disk; None when it saves none."""
    try:
        return int((run.path / stage.progress).read_text()) if stage.progress else None
    except (FileNotFoundError, ValueError):
        return None


def record_end(run: Run, stage: Stage, attempt: AttemptFolder, status: int | None) -> Next:
    """Complete exit.json by the process's status, decide what follows and record that too.

    The status has the last word over what the stage wrote: a stage that is killed after it wrote is killed.
    """
    code = ExitCode.of(status)
    written = read_json(attempt.exit_record) or {}
    record = {
        "code": status if code is ExitCode.BUG else int(code),
        "kind": code.kind,
        "reason": written.get("reason") if written.get("kind") == code.kind else _reason(code, status, written),
        "first_step": written.get("first_step"),
        "last_saved_step": written.get("last_saved_step"),
    }
    if record["last_saved_step"] is None:
        record["last_saved_step"] = saved_step(run, stage)
    history = [*_history(run, stage, before=attempt.number), _ended(run, stage, attempt, record)]
    then = follow(history, Budget.of(run.config))
    record |= {"status": status, "ended": time.time(), "next": then.__dict__}
    write_json(attempt.exit_record, record)
    return then


def read_next(attempt: AttemptFolder) -> Next | None:
    """What was decided at the attempt's end; None while it is not."""
    raw = (read_json(attempt.exit_record) or {}).get("next")
    return Next(**raw) if raw else None


def _reason(code: ExitCode, status: int | None, written: Mapping[str, Any]) -> str:
    if code is ExitCode.DONE:
        return "done"
    if status is not None and (status < 0 or status > 128):
        number = -status if status < 0 else status - 128
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"killed by {name}{hint}"
    if status is None:
        return "the job vanished without an exit record"
    said = f"; the stage itself recorded {written['kind']}: {written.get('reason')}" if written.get("kind") else ""
    return f"ended with status {status} ({code.kind}) and no word why{said}; see its output.log"


def _history(run: Run, stage: Stage, before: int) -> list[Ended]:
    ended = []
    for attempt in run.folder.stage(stage.name).attempts():
        record = read_json(attempt.exit_record)
        if attempt.number < before and record is not None:
            ended.append(_ended(run, stage, attempt, record))
    return ended


def _ended(run: Run, stage: Stage, attempt: AttemptFolder, record: Mapping[str, Any]) -> Ended:
    job = JobRecord.read(attempt)
    earlier = [
        read_json(other.exit_record) or {}
        for other in run.folder.stage(stage.name).attempts()
        if other.number < attempt.number
    ]
    best = max((r["last_saved_step"] for r in earlier if isinstance(r.get("last_saved_step"), int)), default=-1)
    saved = record.get("last_saved_step")
    return Ended(
        code=ExitCode.of(record.get("code")),
        submission=job.submission if job else "",
        saved_new=isinstance(saved, int) and saved > best,
        stop=stop_text(attempt),
    )
