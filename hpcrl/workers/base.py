"""What every worker does first: join the process group of its worker group."""

from __future__ import annotations

import datetime
import logging
import os
import sys

import ray
import torch
import torch.distributed as dist
import transformers

COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=30)


class Worker:
    """One rank of a RayWorkerGroup. Subclasses do their own set-up in methods, never in `__init__`."""

    def __init__(self, rank: int, world_size: int, device: str, threads: int = 1) -> None:
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=f"[rank {rank}] %(message)s")
        logging.getLogger("hpcrl").setLevel(logging.INFO if rank == 0 else logging.WARNING)
        transformers.utils.logging.disable_progress_bar()
        self.rank, self.world_size, self.device = rank, world_size, device
        if device == "cpu":
            torch.set_num_threads(threads)
        self._store: dist.TCPStore | None = None

    def address(self) -> str:
        """This node's address, as Ray knows it."""
        return ray.util.get_node_ip_address()

    def host_store(self) -> tuple[str, int]:
        """Open the rendezvous store on a port that the kernel chooses and keeps for us; rank 0 only."""
        host = self.address()
        self._store = dist.TCPStore(host, 0, self.world_size, is_master=True, wait_for_workers=False)
        return host, self._store.port

    def join(self, host: str, port: int, one_node: bool) -> None:
        """Join the process group; all ranks together."""
        if one_node:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if self.device == "cuda":
            torch.cuda.set_device(0)  # Ray shows each worker its own GPU alone
        store = self._store or dist.TCPStore(host, port, self.world_size, is_master=False)
        dist.init_process_group(
            "nccl" if self.device == "cuda" else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=COLLECTIVE_TIMEOUT,
        )
