"""Tools that a model calls during a rollout: one small file each, declared by a YAML file."""

from hpcrl.utils.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "BaseTool": "hpcrl.tools.base",
        "ToolResponse": "hpcrl.tools.schemas",
        "ToolSchema": "hpcrl.tools.schemas",
        "check_tools": "hpcrl.tools.load",
        "load_tools": "hpcrl.tools.load",
    },
)
