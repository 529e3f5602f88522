"""The seam between training and running: exit codes, the run folder's layout, the files of an attempt.

Both halves, `hpcrl` and `workflows`, know exactly this much of each other. Both write its files whole: `write_json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from hpcrl.utils.files import write_json as write_json
from hpcrl.utils.files import write_text as write_text


class ExitCode(IntEnum):
    """How a stage ends: the only way it speaks to its scheduler."""

    DONE = 0
    BUG = 1
    INFRASTRUCTURE = 69
    NO_SPACE = 73
    STOPPED = 75
    USER_ERROR = 78

    @property
    def kind(self) -> str:
        """The word that `exit.json` records."""
        return self.name.lower()

    @classmethod
    def of(cls, status: int | None) -> ExitCode:
        """The code of a process status; a signal's status (over 128 or negative) or none at all is infrastructure."""
        if status is None or status < 0 or status > 128:
            return cls.INFRASTRUCTURE
        return cls(status) if status in cls._value2member_map_ else cls.BUG


class HpcrlError(Exception):
    """An error whose message is for a person: what, where, what to do. It is shown without a traceback."""

    exit_code = ExitCode.BUG


class UserError(HpcrlError):
    """The user's config, data or code cannot work; never retried."""

    exit_code = ExitCode.USER_ERROR


class InfrastructureError(HpcrlError):
    """A node, network, port or GPU failed; worth another attempt elsewhere."""

    exit_code = ExitCode.INFRASTRUCTURE


class NoSpaceError(HpcrlError):
    """The file system is full or over quota."""

    exit_code = ExitCode.NO_SPACE


class StopRequested(HpcrlError):
    """An orderly end was asked for; what could be saved is saved."""

    exit_code = ExitCode.STOPPED


@dataclass(frozen=True)
class AttemptFolder:
    """One attempt of one stage; never overwritten."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "output.log"

    @property
    def exit_record(self) -> Path:
        """exit.json: {code, kind, reason, first_step, last_saved_step}."""
        return self.path / "exit.json"

    @property
    def heartbeat(self) -> Path:
        """Touched and rewritten while the stage lives: {phase, step, total_steps, time}."""
        return self.path / "heartbeat"

    @property
    def deadline(self) -> Path:
        """Epoch seconds at which the job ends, kept fresh by the job script; absent: no limit."""
        return self.path / "deadline"

    @property
    def stop(self) -> Path:
        """Exists when an orderly end is asked for; its text says why."""
        return self.path / "stop"

    @property
    def number(self) -> int:
        return int(self.path.name)


@dataclass(frozen=True)
class StageFolder:
    """stages/<stage>/ of a run."""

    path: Path

    @property
    def out(self) -> Path:
        return self.path / "out"

    @property
    def done(self) -> Path:
        return self.path / "DONE"

    @property
    def metrics(self) -> Path:
        """metrics.jsonl of a stage that trains beside the run's own training, such as sft."""
        return self.path / "metrics.jsonl"

    @property
    def job_script(self) -> Path:
        return self.path / "job.sbatch"

    def attempt(self, k: int) -> AttemptFolder:
        return AttemptFolder(self.path / "attempts" / str(k))

    def attempts(self) -> list[AttemptFolder]:
        """Attempts on disk, oldest first."""
        folders = (self.path / "attempts").glob("[0-9]*")
        return [AttemptFolder(p) for p in sorted(folders, key=lambda p: int(p.name))]


@dataclass(frozen=True)
class RunFolder:
    """runs/<experiment>/<run_id>/: everything of one run."""

    path: Path

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.yaml"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    def stage(self, name: str) -> StageFolder:
        return StageFolder(self.path / "stages" / name)
