"""One trajectory at a time: what an agent loop is given, what it gives back, and the loops by name."""

from __future__ import annotations

import difflib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from hpcrl.config.data import DataConfig
from hpcrl.config.schema import Config
from hpcrl.config.seam import UserError
from hpcrl.data.lengths import truncate_tokens
from hpcrl.tools.base import BaseTool
from hpcrl.utils.chat import ChatTokens
from hpcrl.utils.seed import turn_key
from hpcrl.workers.rollout.base import RolloutReplica, SamplingParams, TokenOutput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TrajectoryKey:
    """Which trajectory of the run this is; its randomness comes from here alone."""

    seed: int
    step: int
    uid: str
    sample: int
    request_id: str


@dataclass
class AgentLoopOutput:
    """One finished trajectory."""

    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    """Sampled tokens and those of the messages between the turns."""
    response_mask: list[int] = field(default_factory=list)
    """1 on sampled tokens, 0 on the others."""
    response_logprobs: list[float] = field(default_factory=list)
    """0 where not sampled."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation, the prompt included; an assistant's content is its decoded tokens."""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """{name, arguments, response, seconds, error} of each call; error names its kind, None when carried out."""
    tool_rewards: list[float] = field(default_factory=list)
    """Step rewards of the calls in order, then the final reward of each tool that was used."""
    num_turns: int = 1
    """The prompt, the assistant's turns and the tools' turns between them."""
    stop_reason: str = ""
    """stop, length, max_assistant_turns, max_user_turns or abort."""
    weight_version: int = 0
    """Version of the weights that sampled the last turn."""
    generate_seconds: float = 0.0
    """Time in which the trajectory waited for the engine."""

    def add_sampled(self, output: TokenOutput) -> None:
        self.response_ids += output.token_ids
        self.response_mask += [1] * len(output.token_ids)
        self.response_logprobs += output.log_probs
        self.weight_version = output.weight_version

    def add_given(self, ids: list[int]) -> None:
        self.response_ids += ids
        self.response_mask += [0] * len(ids)
        self.response_logprobs += [0.0] * len(ids)


class AgentLoopBase(ABC):
    """A kind of trajectory. One object serves all trajectories of a batch; what belongs to one stays in `run`."""

    def __init__(
        self,
        config: Config,
        tokenizer: PreTrainedTokenizerBase,
        replica: RolloutReplica,
        tools: Mapping[str, BaseTool],
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.replica = replica
        self.tools = tools
        self._chats: dict[tuple[str, ...], ChatTokens] = {}
        self._special_ids = frozenset(tokenizer.all_special_ids)

    @abstractmethod
    async def run(self, key: TrajectoryKey, sampling: SamplingParams, row: Mapping[str, Any]) -> AgentLoopOutput:
        """Make the trajectory of one row of the dataset (raw_prompt, extra_info, …)."""

    async def generate(
        self, key: TrajectoryKey, sampling: SamplingParams, ids: list[int], turn: int, max_tokens: int
    ) -> TokenOutput:
        """Sample a turn (numbered from 0) after the tokens `ids`."""
        seed = turn_key(key.seed, key.step, key.uid, key.sample, turn)
        max_tokens = min(max_tokens, sampling.max_tokens or max_tokens)
        return await self.replica.generate(ids, replace(sampling, seed=seed, max_tokens=max_tokens), key.request_id)

    def chat(self, tools: Mapping[str, BaseTool]) -> ChatTokens:
        """The chat template with these tools."""
        names = tuple(tools)
        if names not in self._chats:
            schemas = [tool.get_openai_tool_schema() for tool in tools.values()]
            self._chats[names] = ChatTokens(self.tokenizer, schemas, self.config.data.apply_chat_template_kwargs)
        return self._chats[names]

    def turn_text(self, output: TokenOutput) -> str:
        """The text of a sampled turn, without the token that ended it."""
        ids = output.token_ids
        if ids and output.stop_reason == "stop" and ids[-1] in self._special_ids:
            ids = ids[:-1]
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def fit_prompt(ids: list[int], data: DataConfig, uid: str) -> list[int]:
    """The prompt within `max_prompt_length`, cut as `data.truncation` says.

    Raises:
        UserError: it is too long and may not be cut.
    """
    limit = data.max_prompt_length
    if len(ids) <= limit:
        return ids
    if data.truncation != "error":
        return truncate_tokens(ids, limit, data.truncation)
    raise UserError(
        f"prompt {uid} has {len(ids)} tokens, data.max_prompt_length is {limit}: raise it, set "
        "data.filter_overlong_prompts=true, or cut prompts by data.truncation=left, right or middle"
    )


_LOOPS: dict[str, str] = {
    "single_turn_agent": "hpcrl.workers.rollout.agent_loop.single_turn:SingleTurnAgentLoop",
    "tool_agent": "hpcrl.workers.rollout.agent_loop.tool_agent:ToolAgentLoop",
}

LoopClass = TypeVar("LoopClass", bound=type[AgentLoopBase])


def register(name: str) -> Callable[[LoopClass], LoopClass]:
    """Make an agent loop known under the `agent_name` of rows."""

    def remember(loop_class: LoopClass) -> LoopClass:
        _LOOPS[name] = f"{loop_class.__module__}:{loop_class.__qualname__}"
        return loop_class

    return remember


def get_agent_loop_class(name: str) -> type[AgentLoopBase]:
    """The class of an agent loop: a registered name, or the dotted path of the user's own class."""
    if name in _LOOPS:
        module_name, _, class_name = _LOOPS[name].partition(":")
    elif "." in name:
        module_name, _, class_name = name.rpartition(".")
    else:
        near = difflib.get_close_matches(name, _LOOPS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"unknown agent loop {name!r}, known are {sorted(_LOOPS)} or a dotted path{hint}")
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the agent loop {name!r} could not be imported: {error}") from error
