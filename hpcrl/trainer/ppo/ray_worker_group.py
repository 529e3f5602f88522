"""RayWorkerGroup: one call fans out to the workers of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hpcrl.config.seam import HpcrlError, InfrastructureError
from hpcrl.trainer.ppo.resource_pool import ResourcePool
from hpcrl.workers.base import Worker

SECONDS_FOR_OTHERS = 5.0
"""How long, after an error, other ranks are waited for: the one that was lost tells more than those that miss it."""


class RayWorkerGroup:
    """Spawns one Ray actor a rank and dispatches method calls to all of them.

    Args:
        num_workers: ranks; at most the pool's size.
        worker_cls: subclass of `hpcrl.workers.base.Worker`.
        resource_pool: where they live.
        threads: CPU threads of each rank, where ranks compute on CPUs.

    A method of the workers can be called on the group by its name: it runs on all ranks with the same arguments and
    answers the list of their results, by rank.
    """

    def __init__(
        self, num_workers: int, worker_cls: type[Worker], resource_pool: ResourcePool, threads: int = 1
    ) -> None:
        if num_workers > resource_pool.size:
            raise ValueError(
                f"{num_workers} workers do not fit into pool {resource_pool.name!r} of {resource_pool.size}"
            )
        self.worker_cls, self.world_size = worker_cls, num_workers
        remote = ray.remote(worker_cls)
        self.workers = [
            remote.options(
                **resource_pool.resources,
                name=None,
                max_restarts=0,
                runtime_env={"env_vars": _environment(resource_pool.device, threads)},
                scheduling_strategy=PlacementGroupSchedulingStrategy(resource_pool.placement, rank),
            ).remote(rank, num_workers, resource_pool.device, threads)
            for rank in range(num_workers)
        ]
        self._join()

    def execute_all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method on every rank with the same arguments."""
        return self._get([getattr(worker, method).remote(*args, **kwargs) for worker in self.workers])

    def execute_each(self, method: str, shares: Sequence[Any], **kwargs: Any) -> list[Any]:
        """Call a method on every rank, each with its own first argument."""
        calls = zip(self.workers, shares, strict=True)
        return self._get([getattr(worker, method).remote(share, **kwargs) for worker, share in calls])

    def execute_rank_zero(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method on rank 0 alone."""
        return self._get([getattr(self.workers[0], method).remote(*args, **kwargs)])[0]

    def __getattr__(self, method: str) -> Callable[..., list[Any]]:
        if method.startswith("_") or not hasattr(self.worker_cls, method):
            raise AttributeError(f"{type(self).__name__} of {self.worker_cls.__name__} has no method {method!r}")
        return lambda *args, **kwargs: self.execute_all(method, *args, **kwargs)

    def _join(self) -> None:
        hosts = self.execute_all("address")
        host, port = self.execute_rank_zero("host_store")
        self.execute_all("join", host, port, one_node=len(set(hosts)) == 1)

    def _get(self, references: list[ray.ObjectRef]) -> list[Any]:
        """Results of all ranks; the first error that arrives ends the wait, since the others may hang without it."""
        waiting = list(references)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            error = _error_of(done[0])
            if error is not None:
                raise self._meaning(error, waiting)
        return ray.get(references)

    def _meaning(self, error: RayError, waiting: list[ray.ObjectRef]) -> BaseException:
        """What the worker raised, when it is for a person or its own fault; a lost worker is infrastructure."""
        if isinstance(error, RayTaskError) and isinstance(error.cause, HpcrlError):
            return error.cause
        others = ray.wait(waiting, num_returns=len(waiting), timeout=SECONDS_FOR_OTHERS)[0] if waiting else []
        for other in (error, *(_error_of(reference) for reference in others)):
            if other is not None and not isinstance(other, RayTaskError):
                return InfrastructureError(f"a worker of {self.worker_cls.__name__} was lost: {other}")
        return error


def _error_of(reference: ray.ObjectRef) -> RayError | None:
    try:
        ray.get(reference)
    except RayError as error:
        return error
    return None


def _environment(device: str, threads: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads)} if device == "cpu" else {}
