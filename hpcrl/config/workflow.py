"""`workflow.*` and `cluster.*`: which stages run, on what, by which scheduler."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hpcrl.config.actor import Positive
from hpcrl.config.base import section

StageName = Literal["fetch", "prepare", "sft", "train", "evaluate"]


def _default_stages() -> list[StageName]:
    return ["train", "evaluate"]


@section
class ResourcesConfig:
    nodes: Positive = 1
    """Nodes of the stage's job; read by Slurm, and by nothing under `cluster.scheduler: local`."""
    gpus_per_node: Annotated[int, Field(ge=0)] = 0
    """GPUs on each node; read by Slurm."""
    cpus_per_task: Positive = 2
    """CPU cores on each node."""
    mem: str | None = None
    """Memory on each node, as sbatch writes it (64G); null: the partition's default. Read by Slurm."""
    time: str = "24:00:00"
    """Wall-time limit, as sbatch writes it; the stage stops in order before it, and goes on in the next attempt."""


@section
class WorkflowConfig:
    stages: list[StageName] = Field(default_factory=_default_stages)
    """Stages of the run, in order; `prepare` where rows are made from sources, `sft` for a warm start."""
    resources: dict[StageName, ResourcesConfig] = Field(default_factory=dict)
    """Resources of each stage; a stage without an entry takes the defaults."""


@section
class ClusterConfig:
    scheduler: Literal["local"] = "local"
    """What runs the job scripts."""
    stop_grace: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that a stage has, after a stop is asked for, to save and leave before it is killed."""
    max_infrastructure_attempts: Positive = 3
    """Attempts in a row that may end as infrastructure with nothing new saved, before the stage is given up."""
    max_stopped_attempts: Positive = 3
    """Attempts in a row that may end wanting more time with nothing new saved, before the stage is given up."""
    retry_delay: Annotated[float, Field(ge=0)] = 5.0
    """Seconds before such a stage is tried again; doubled each time, up to ten minutes."""
