"""The Ray cluster of an attempt: the one that the job brought up, or a private one on this machine."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from hpcrl.config import Config, UserError
from hpcrl.stage import StageJob

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 256 * 2**20
"""Object store of a private Ray on a CPU machine: batches are small there, and memory is the model's."""


@contextmanager
def ray_cluster(job: StageJob) -> Iterator[None]:
    """Connect to the Ray at RAY_ADDRESS if the job brought one up, else start a private one; leave nothing behind."""
    address = os.environ.get("RAY_ADDRESS")
    if address:
        ray.init(address=address, logging_level=logging.WARNING)
        try:
            yield
        finally:
            ray.shutdown()
        return
    with _private_ray(job):
        yield


@contextmanager
def _private_ray(job: StageJob) -> Iterator[None]:
    # A socket's path holds 107 bytes, and another user may own a folder of a fixed name: short, ours, on local disk.
    folder = Path(tempfile.gettempdir()) / f"hpcrl-{os.getuid()}-{secrets.token_hex(3)}"
    device = resolve_device(job.config)
    options: dict[str, object] = {}
    if device == "cpu":
        ranks = job.config.trainer.nnodes * job.config.trainer.n_gpus_per_node
        options = {
            "num_cpus": max(ranks, os.cpu_count() or 1),
            "num_gpus": 0,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # ranks are the job's real work, not a background of it
    ray.init(
        address="local",
        include_dashboard=False,
        logging_level=logging.WARNING,
        _temp_dir=str(folder),
        **options,
    )
    failed = True
    try:
        yield
        failed = False
    finally:
        ray.shutdown()
        if failed:
            _keep_logs(folder, job.attempt.path / "ray")
        shutil.rmtree(folder, ignore_errors=True)


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
