"""ResourcePoolManager: which worker groups get how many GPUs (or CPUs in their place), as Ray placement groups."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from hpcrl.config.seam import InfrastructureError, UserError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResourcePool:
    """A placement group with one bundle a rank."""

    name: str
    placement: PlacementGroup
    size: int
    device: str

    @property
    def resources(self) -> dict[str, float]:
        """What one rank takes of its bundle."""
        return {"num_cpus": 1, "num_gpus": 1 if self.device == "cuda" else 0}


class ResourcePoolManager:
    """Reserves resources for worker groups.

    Args:
        resource_pool_spec: pool name -> {"gpu": ranks}, e.g. {"actor_rollout_ref": {"gpu": 4}, "critic": {"gpu": 2}}.
        device: "cuda": a rank takes a GPU; "cpu": a CPU stands in for it; "auto": what the cluster has.
        timeout: seconds to wait for the cluster to have room.
    """

    def __init__(
        self, resource_pool_spec: Mapping[str, Mapping[str, int]], device: str = "auto", timeout: float = 300.0
    ) -> None:
        for name, spec in resource_pool_spec.items():
            if set(spec) != {"gpu"} or not isinstance(spec["gpu"], int) or spec["gpu"] < 1:
                raise UserError(
                    f'resource_pool_spec[{name!r}] must be {{"gpu": ranks}} with at least one, got {dict(spec)}'
                )
        self.resource_pool_spec = {name: dict(spec) for name, spec in resource_pool_spec.items()}
        self.device = device
        self.timeout = timeout
        self._pools: dict[str, ResourcePool] = {}

    def create_resource_pool(self) -> None:
        """Reserve all pools, on the Ray that is connected, at RAY_ADDRESS, or on one of this process alone.

        Raises:
            UserError: the whole cluster has fewer GPUs (or CPUs) than the pools ask for.
            InfrastructureError: the cluster has them, but not free within `timeout`.
        """
        if not ray.is_initialized():
            ray.init(address=os.environ.get("RAY_ADDRESS", "local"), include_dashboard=False)
        device = self._resolved_device()
        self._check_resource_available(device)
        for name, spec in self.resource_pool_spec.items():
            if name not in self._pools:
                self._pools[name] = self._reserve(name, spec["gpu"], device)

    def get_resource_pool(self, name: str) -> ResourcePool:
        """The pool of a worker group, reserved at the first call."""
        if name not in self.resource_pool_spec:
            raise UserError(f"no resource pool {name!r}: there are {sorted(self.resource_pool_spec)}")
        self.create_resource_pool()
        return self._pools[name]

    def get_n_gpus(self) -> int:
        """Ranks of all pools together."""
        return sum(spec["gpu"] for spec in self.resource_pool_spec.values())

    def _reserve(self, name: str, ranks: int, device: str) -> ResourcePool:
        bundle: dict[str, float] = {"CPU": 1, "GPU": 1} if device == "cuda" else {"CPU": 1}
        placement = placement_group([bundle] * ranks, strategy="PACK", name=name)
        if not placement.wait(self.timeout):
            remove_placement_group(placement)
            raise InfrastructureError(
                f"pool {name!r}: {ranks} × {bundle} not free within {self.timeout:.0f} s; "
                f"free: {ray.available_resources()}"
            )
        return ResourcePool(name, placement, ranks, device)

    def _resolved_device(self) -> str:
        if self.device != "auto":
            return self.device
        return "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"

    def _check_resource_available(self, device: str) -> None:
        kind = "GPU" if device == "cuda" else "CPU"
        have, want = int(ray.cluster_resources().get(kind, 0)), self.get_n_gpus()
        if have < want:
            pools = ", ".join(f"{name}: {spec['gpu']}" for name, spec in self.resource_pool_spec.items())
            raise UserError(
                f"Total available {kind}s {have} is less than total desired {kind}s {want} "
                f"({pools}): "
                "lower trainer.n_gpus_per_node or trainer.nnodes, or ask for a larger allocation"
            )
