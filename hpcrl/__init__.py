"""hpcrl: RL post-training of language models as Slurm batch workflows. Importing it stays cheap: names come lazily."""

from hpcrl.utils.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "DataProto": "hpcrl.protocol",
        "RayPPOTrainer": "hpcrl.trainer.ppo.ray_trainer",
    },
)
