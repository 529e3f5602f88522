"""What Ray actors do: the policy worker, the sft worker, and the engine, rollout and reward rooms below them."""

from hpcrl.utils.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "ActorRolloutRefWorker": "hpcrl.workers.actor_rollout_ref",
        "SFTWorker": "hpcrl.workers.sft",
    },
)
