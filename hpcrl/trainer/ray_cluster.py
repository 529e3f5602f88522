"""The Ray cluster of an attempt: the one that the job brought up, or a private one on this machine."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from hpcrl.config import Config, InfrastructureError, UserError
from hpcrl.stage import StageJob

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 256 * 2**20
"""Object store of a private Ray on a CPU machine: batches are small there, and memory is the model's."""

LONGEST_TEMP_DIR = 20
"""Longest temporary folder, in bytes, below which Ray's socket paths fit."""


@contextmanager
def ray_cluster(job: StageJob) -> Iterator[None]:
    """Connect to the Ray at RAY_ADDRESS if the job brought one up, else start a private one; leave nothing behind."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        with _private_ray(job):
            yield
        return
    _init(address=address)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _private_ray(job: StageJob) -> Iterator[None]:
    folder = _own_folder()
    _init(address="local", include_dashboard=False, _temp_dir=str(folder), **_resources(job.config))
    failed = True
    try:
        yield
        failed = False
    finally:
        ray.shutdown()
        if failed:
            _keep_logs(folder, job.attempt.path / "ray")
        shutil.rmtree(folder, ignore_errors=True)


def _init(**options: Any) -> None:
    try:
        ray.init(logging_level=logging.WARNING, **options)
    except (RayError, OSError, ConnectionError, RuntimeError, TimeoutError) as error:
        raise InfrastructureError(f"Ray did not start: {error}") from error


def _own_folder() -> Path:
    """A folder for Ray's sockets and logs; those of our processes that were killed are removed.

    A socket's path holds 107 bytes, of which Ray needs about 80, and another user may own a folder of a fixed name:
    so it is short, ours, and on local disk.
    """
    base = Path(tempfile.gettempdir())
    if len(str(base)) > LONGEST_TEMP_DIR:
        base = Path("/tmp")
    mine = f"hpcrl-{os.getuid()}-"
    for old in base.glob(f"{mine}*"):
        pid = old.name.removeprefix(mine)
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(old, ignore_errors=True)
    return base / f"{mine}{os.getpid()}"


def _resources(config: Config) -> dict[str, Any]:
    if resolve_device(config) == "cuda":
        return {}
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    return {"num_cpus": max(ranks, os.cpu_count() or 1), "num_gpus": 0, "object_store_memory": OBJECT_STORE_BYTES}


def _keep_logs(folder: Path, to: Path) -> None:
    logs = folder / "session_latest" / "logs"
    if logs.is_dir():
        shutil.copytree(logs, to, dirs_exist_ok=True, ignore_dangling_symlinks=True)
        logger.info("Ray's logs are kept in %s", to)


def resolve_device(config: Config) -> str:
    """`cpu` or `cuda`: what `trainer.device` says, or, for `auto`, what this machine has.

    Raises:
        UserError: `cuda` is asked for where there is none.
    """
    import torch

    wanted = config.trainer.device
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available() and not os.environ.get("RAY_ADDRESS"):
        raise UserError(
            "trainer.device=cuda, but this machine shows no GPU: set trainer.device=cpu, or run on a GPU node"
        )
    return wanted
