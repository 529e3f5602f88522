"""The evaluate stage: `python -m hpcrl.evaluate run_dir=… attempt_dir=…`."""

from __future__ import annotations

from hpcrl.stage import StageJob, stage_main
from hpcrl.trainer.ray_settings import apply_ray_settings


def run(job: StageJob) -> None:
    """Bring up Ray, then evaluate the trained model and the one before RL."""
    apply_ray_settings()
    from hpcrl.trainer.checks import check_sampling
    from hpcrl.trainer.evaluate import evaluate
    from hpcrl.trainer.ray_cluster import ray_cluster

    check_sampling(job)
    with ray_cluster(job):
        evaluate(job)


if __name__ == "__main__":
    stage_main("evaluate", run)
