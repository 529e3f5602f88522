"""The sft stage: `python -m hpcrl.sft run_dir=… attempt_dir=…`."""

from __future__ import annotations

from hpcrl.stage import StageJob, stage_main
from hpcrl.trainer.ray_settings import apply_ray_settings


def run(job: StageJob) -> None:
    """Bring up Ray, then train on the demonstrations."""
    apply_ray_settings()
    from hpcrl.trainer.ray_cluster import ray_cluster
    from hpcrl.trainer.sft.trainer import SFTTrainer

    with ray_cluster(job):
        trainer = SFTTrainer(job)
        trainer.init_workers()
        trainer.fit()


if __name__ == "__main__":
    stage_main("sft", run)
