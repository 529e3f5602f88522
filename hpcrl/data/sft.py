"""Demonstrations as token sequences, piece by piece as a rollout would have made them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from hpcrl.config.seam import UserError
from hpcrl.data.lengths import truncate_tokens
from hpcrl.data.row import BadRow, conversation
from hpcrl.data.tables import ParquetRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hpcrl.utils.chat import ChatTokens


class Tokens(TypedDict):
    """A tokenised demonstration: both lists have one entry a token."""

    input_ids: list[int]
    loss_mask: list[int]


def encode_conversation(messages: list[dict[str, str]], chat: ChatTokens) -> Tokens:
    """Tokens of a conversation, with a mask that is 1 exactly on what the assistant samples.

    Every assistant turn is its content's tokens and the end-of-turn token, both masked 1; what the template puts
    around them, prompts and tool answers are masked 0. What follows the last assistant turn is left out.

    Raises:
        BadRow: no assistant turn, two in a row, or none to answer the head.
        UserError: the chat template refuses the conversation.
    """
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        raise BadRow("messages: no assistant turn to learn from")
    if turns[0] == 0 or any(later == earlier + 1 for earlier, later in pairwise(turns)):
        raise BadRow("messages: an assistant turn answers no message")
    ids = list(chat.prompt_ids(messages[: turns[0]]))
    mask = [0] * len(ids)
    for number, turn in enumerate(turns):
        sampled = [*chat.tokenizer(messages[turn]["content"], add_special_tokens=False)["input_ids"], chat.end_of_turn]
        ids += sampled
        mask += [1] * len(sampled)
        if number + 1 < len(turns):
            between = chat.followup_ids(messages[:turn], messages[turn + 1 : turns[number + 1]])
            ids += between
            mask += [0] * len(between)
    return {"input_ids": ids, "loss_mask": mask}


class SFTDataset:
    """Conversations of parquet files, tokenised when they are asked for."""

    def __init__(
        self,
        files: Sequence[str | Path],
        tokenizer: PreTrainedTokenizerBase,
        messages_key: str = "messages",
        max_length: int = 1024,
        tools: list[dict[str, Any]] | None = None,
        *,
        template_kwargs: dict[str, Any] | None = None,
        truncation: Literal["error", "left", "right", "middle"] = "error",
    ) -> None:
        """Args:
        files: parquet files with a column of chat messages.
        tokenizer: one with a chat template.
        messages_key: that column.
        max_length: longest conversation, in tokens.
        tools: schemas that the chat template is given.
        template_kwargs: further arguments of the template.
        truncation: `error` refuses a longer conversation when it is asked for; a side cuts it there.

        Raises:
            UserError: missing or unreadable file, missing column.
        """
        from hpcrl.utils.chat import ChatTokens

        self._rows = ParquetRows(files, {messages_key: "sft.messages_key"})
        self._chat = ChatTokens(tokenizer, tools, template_kwargs)
        self.messages_key, self.max_length, self.truncation = messages_key, max_length, truncation

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tokens:
        """Tokens of a row; raises UserError naming file and row where it cannot be used."""
        file, row = self._rows.place(index)
        where = f"{self._rows.files[file]}, row {row}"
        try:
            tokens = encode_conversation(conversation(self._rows[index][self.messages_key], "messages"), self._chat)
        except (BadRow, UserError) as error:
            raise UserError(f"{where}: {error}") from None
        length = len(tokens["input_ids"])
        if length <= self.max_length:
            return tokens
        if self.truncation == "error":
            raise UserError(
                f"{where}: the conversation has {length} tokens, over sft.max_length = {self.max_length}: raise it, "
                "or set data.filter_overlong_prompts = true to have the prepare stage drop such rows"
            )
        ids = truncate_tokens(tokens["input_ids"], self.max_length, self.truncation)
        return {"input_ids": ids, "loss_mask": truncate_tokens(tokens["loss_mask"], self.max_length, self.truncation)}
