"""The train stage: `python -m hpcrl.train run_dir=… attempt_dir=…`."""

from __future__ import annotations

from hpcrl.stage import StageJob, stage_main
from hpcrl.trainer.ray_settings import apply_ray_settings


def run(job: StageJob) -> None:
    """Bring up Ray, then train."""
    apply_ray_settings()
    from hpcrl.trainer.checks import check_training
    from hpcrl.trainer.ppo.ray_trainer import POOL, RayPPOTrainer
    from hpcrl.trainer.ppo.ray_worker_group import RayWorkerGroup
    from hpcrl.trainer.ppo.resource_pool import ResourcePoolManager
    from hpcrl.trainer.ray_cluster import ray_cluster, resolve_device

    check_training(job)
    trainer = job.config.trainer
    with ray_cluster(job):
        manager = ResourcePoolManager(
            resource_pool_spec={POOL: {"gpu": trainer.nnodes * trainer.n_gpus_per_node}},
            device=resolve_device(job.config),
        )
        ppo = RayPPOTrainer(
            config=job.config, resource_pool_manager=manager, ray_worker_group_cls=RayWorkerGroup, job=job
        )
        ppo.init_workers()
        ppo.fit()


if __name__ == "__main__":
    stage_main("train", run)
