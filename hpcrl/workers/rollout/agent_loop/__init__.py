"""How a trajectory comes about: turns of the model, answers of tools, until it ends."""

from hpcrl.utils.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "AgentLoopBase": "hpcrl.workers.rollout.agent_loop.base",
        "AgentLoopManager": "hpcrl.workers.rollout.agent_loop.manager",
        "AgentLoopOutput": "hpcrl.workers.rollout.agent_loop.base",
        "get_agent_loop_class": "hpcrl.workers.rollout.agent_loop.base",
        "register": "hpcrl.workers.rollout.agent_loop.base",
        "rollout_metrics": "hpcrl.workers.rollout.agent_loop.metrics",
    },
)
