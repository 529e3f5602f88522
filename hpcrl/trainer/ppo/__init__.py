"""The PPO family's trainer on Ray, and its algorithms."""

from hpcrl.utils.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "RayPPOTrainer": "hpcrl.trainer.ppo.ray_trainer",
        "RayWorkerGroup": "hpcrl.trainer.ppo.ray_worker_group",
        "ResourcePoolManager": "hpcrl.trainer.ppo.resource_pool",
    },
)
