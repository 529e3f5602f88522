"""From responses to reward tensors."""

from hpcrl.utils.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "AbstractRewardManager": "hpcrl.workers.reward_manager.base",
        "DAPORewardManager": "hpcrl.workers.reward_manager.dapo",
        "NaiveRewardManager": "hpcrl.workers.reward_manager.naive",
        "get_reward_manager_cls": "hpcrl.workers.reward_manager.registry",
        "register": "hpcrl.workers.reward_manager.registry",
    },
)
