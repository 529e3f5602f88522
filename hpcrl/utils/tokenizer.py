"""Tokenizers with their end and padding tokens in order."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hpcrl.config.seam import UserError

logger = logging.getLogger(__name__)


def hf_tokenizer(
    name_or_path: str, correct_pad_token: bool = True, correct_gemma2: bool = True, **kwargs: Any
) -> PreTrainedTokenizerBase:
    """A Hugging Face tokenizer which handles eos and pad tokens correctly.

    Args:
        name_or_path: folder or hub id.
        correct_pad_token: use the end token for padding where the tokenizer has no padding token.
        correct_gemma2: end Gemma 2's instruction-tuned turns with `<end_of_turn>` (id 107).
        **kwargs: handed to `AutoTokenizer.from_pretrained`.

    Raises:
        UserError: nothing that can be loaded stands at `name_or_path`.
    """
    if correct_gemma2 and "gemma-2-2b-it" in Path(str(name_or_path)).name:
        kwargs = {"eos_token": "<end_of_turn>", "eos_token_id": 107, **kwargs}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, **kwargs)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"no tokenizer could be loaded from {name_or_path!r}: {error}") from error
    if correct_pad_token and tokenizer.pad_token_id is None:
        logger.warning(
            "the tokenizer of %s has no padding token: using the end token %r", name_or_path, tokenizer.eos_token
        )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
