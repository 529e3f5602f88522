"""Chat messages to tokens and back into the middle of a trajectory: appended once, never rendered again.

A trajectory's tokens are those that the engine sampled and those of the messages between the turns. Rendering the
whole conversation again after a turn would change what was sampled: templates rewrite earlier turns, and text does
not always tokenise to the tokens that it was decoded from. So only the new messages are rendered, after a stand-in
for the sampled turn, and what the template puts after that stand-in is appended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jinja2

from hpcrl.config.seam import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Message = Mapping[str, Any]

STAND_IN = "hpcrlSampledTurn"
"""Stands for the sampled turn while new messages are rendered; plain letters, which no template rewrites."""
CACHED = 4096
"""Renderings that are remembered."""


class ChatTokens:
    """The chat template of a tokenizer, for conversations with one set of tools."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: list[dict[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
        tokenizer: one with a chat template.
        tools: schemas in OpenAI's form, shown to the model by the template.
        template_kwargs: further variables of the template (`data.apply_chat_template_kwargs`).
        """
        self.tokenizer = tokenizer
        self._render_kwargs = {**(template_kwargs or {}), "tools": tools or None}
        # samples of one prompt ask for the same tokens again and again
        self._prompt = lru_cache(CACHED)(self._prompt_of)
        self._after = lru_cache(CACHED)(self._after_of)
        closing = self._after("[]", "[]")
        if not closing:
            raise UserError("the chat template puts nothing after an assistant's turn: turns cannot be told apart")
        self.end_of_turn: int = closing[0]
        """Token with which the template ends an assistant's turn."""

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of the conversation so far, up to and including the header of the assistant's next turn."""
        return list(self._prompt(json.dumps(list(messages))))

    def followup_ids(
        self, messages_before: Sequence[Message], new_messages: Sequence[Message], *, ended: bool = True
    ) -> list[int]:
        """Tokens between a sampled turn and the next one.

        Args:
            messages_before: the conversation before the sampled turn; only its head, up to the first user message,
                is looked at.
            new_messages: tool or user messages that answer the sampled turn.
            ended: the sampled turn's last token is `end_of_turn`. Otherwise (a stop string, another end token) the
                template's end of turn comes first.
        """
        ids = self._after(json.dumps(_head(messages_before)), json.dumps(list(new_messages)))
        if ids[0] != self.end_of_turn:
            raise UserError(
                f"the chat template ends an assistant's turn by token {ids[0]} before these messages and by "
                f"{self.end_of_turn} otherwise: it cannot be used for several turns"
            )
        return list(ids[1:] if ended else ids)

    def _prompt_of(self, messages: str) -> tuple[int, ...]:
        return self.encode(self._render(json.loads(messages), add_generation_prompt=True))

    def _after_of(self, head: str, new_messages: str) -> tuple[int, ...]:
        """Tokens that the template puts behind a turn which stands between these messages (JSON lists)."""
        new = json.loads(new_messages)
        messages = [*_head(json.loads(head)), {"role": "assistant", "content": STAND_IN}, *new]
        text = self._render(messages, add_generation_prompt=bool(new))
        _, found, after = text.rpartition(STAND_IN)
        if not found:
            raise UserError("the chat template leaves out the assistant's turn before the new messages")
        return self.encode(after)

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        if not self.tokenizer.chat_template:
            raise UserError("the tokenizer has no chat template: give one, or a model that has been trained for chat")
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt, **self._render_kwargs
            )
        except jinja2.TemplateError as error:
            roles = [str(message.get("role")) for message in messages]
            raise UserError(f"the chat template refuses a conversation of the roles {roles}: {error}") from error
        return text

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of rendered text, which holds its special tokens already."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _head(messages: Sequence[Message]) -> list[Message]:
    """The messages up to the first user message, which is made up where there is none."""
    for i, message in enumerate(messages):
        if message["role"] == "user":
            return list(messages[: i + 1])
    return [message for message in messages if message["role"] == "system"] + [{"role": "user", "content": "?"}]


def check_template(
    tokenizer: PreTrainedTokenizerBase,
    tools: list[dict[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Refuse a chat template with which an agent loop cannot work. For the start of a stage.

    Raises:
        UserError: there is no template; it does not show the tools to the model; it does not show a tool's answer.
    """
    chat = ChatTokens(tokenizer, tools, template_kwargs)
    question = [{"role": "user", "content": "question"}]
    prompt = tokenizer.decode(chat.prompt_ids(question))
    if not tools:
        return
    hidden = [name for name in (tool["function"]["name"] for tool in tools) if name not in prompt]
    if hidden:
        raise UserError(
            f"the tokenizer's chat template has no tool support: the tools {hidden} do not appear in a rendered "
            "prompt. Use a model whose template renders `tools`, or give the tokenizer another chat template "
            "(actor_rollout_ref.model.tokenizer_path)"
        )
    answer = "answer46answer"
    followup = chat.followup_ids(question, [{"role": "tool", "content": answer}])
    if answer not in tokenizer.decode(followup):
        raise UserError(
            "the tokenizer's chat template has no tool support: it leaves out messages of role `tool`, so that the "
            "model would never see a tool's answer"
        )
    said = "said"
    whole = chat.prompt_ids([*question, {"role": "assistant", "content": said}, {"role": "tool", "content": answer}])
    pieces = chat.prompt_ids(question) + [*chat.encode(said), chat.end_of_turn] + followup
    if whole != pieces:
        logger.warning(
            "the chat template renders an earlier assistant turn otherwise than it is sampled; "
            "trajectories keep the sampled tokens.\nas sampled: %r\nas rendered: %r",
            tokenizer.decode(pieces),
            tokenizer.decode(whole),
        )
