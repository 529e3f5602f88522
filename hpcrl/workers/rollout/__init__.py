"""Sampling: engines behind one interface, the agent loop, token-exact chat."""

from hpcrl.utils.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "AgentLoopManager": "hpcrl.workers.rollout.agent_loop.manager",
        "ChatTokens": "hpcrl.utils.chat",
        "RolloutReplica": "hpcrl.workers.rollout.base",
        "SamplingParams": "hpcrl.workers.rollout.base",
        "TokenOutput": "hpcrl.workers.rollout.base",
        "get_rollout_replica_class": "hpcrl.workers.rollout.base",
        "register_rollout_replica": "hpcrl.workers.rollout.base",
    },
)
