"""How models write tool calls (`multi_turn.format`), one parser a file."""

from hpcrl.utils.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "BadToolCall": "hpcrl.workers.rollout.tool_parser.base",
        "ToolCall": "hpcrl.workers.rollout.tool_parser.base",
        "ToolParser": "hpcrl.workers.rollout.tool_parser.base",
        "get_tool_parser": "hpcrl.workers.rollout.tool_parser.base",
        "register_tool_parser": "hpcrl.workers.rollout.tool_parser.base",
    },
)
