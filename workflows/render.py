"""Job scripts from the templates in sbatch/."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from workflows.snapshot import PROJECT_ROOT
from workflows.stages import Stage

TEMPLATES = PROJECT_ROOT / "sbatch"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class JobScript:
    """Everything that a stage's job script is made from."""

    stage: Stage
    run: Path
    token: str
    scheduler: str
    lock: Path | None = None
    """File that is locked while the stage runs; None: nobody shares its outputs."""
    python: Path = field(default_factory=lambda: Path(sys.executable))

    def render(self) -> str:
        return (
            _environment()
            .get_template("job.sbatch.j2")
            .render(
                stage=self.stage,
                run=str(self.run),
                experiment=self.run.parent.name,
                run_id=self.run.name,
                token=self.token,
                scheduler=self.scheduler,
                lock=str(self.lock or ""),
                python=str(self.python),
                environment=stage_environment(self.stage),
            )
        )


def stage_environment(stage: Stage) -> dict[str, str]:
    """Variables of the stage's process: the hub is off unless it fetches, the thread pools are as its cores."""
    cpus = str(stage.resources.get("cpus_per_task", stage.threads))
    environment = {} if stage.online else dict.fromkeys(OFFLINE, "1")
    environment |= dict.fromkeys(THREADS, str(stage.threads))
    return environment | {
        "POLARS_MAX_THREADS": cpus,
        "RAYON_NUM_THREADS": cpus,
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.globals["part"] = _part
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    environment.filters["oneline"] = lambda value: " ".join(str(value).split())
    return environment


def _part(name: str) -> str:
    """A part of the script that is bash as it stands; what shellcheck reads in it alone has no place in the whole."""
    lines = (TEMPLATES / name).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("# shellcheck"))
