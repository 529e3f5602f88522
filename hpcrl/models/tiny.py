"""A tiny random Qwen2-style model and its tokenizer, for experiments that learn on a CPU in minutes."""

from __future__ import annotations

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from hpcrl.config.model import TinyModelConfig

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [PAD, START, END]
TOOL_TOKENS = ["<tool_call>", "</tool_call>"]

CHAT_TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif -%}
Tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (loop.first and tools and message.role == 'system') -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""

_CORPUS = [
    "<|im_start|>system\nTools: calculator<|im_end|>\n<|im_start|>user\n12 + 34 = ?<|im_end|>\n<|im_start|>assistant\n",
    '{"name": "calculator", "arguments": {"expression": "12+34"}}',
    '\n{"name": "calculator", "arguments": {"expression": "7*89"}}\n',
    "<|im_end|>\n<|im_start|>tool\n46<|im_end|>\n<|im_start|>assistant\n#### 46<|im_end|>\n",
    "What is the answer to this question? Use a tool when it helps, then give the result after ####.",
    "You are a helpful assistant. The user asks, the assistant answers; true, false, yes, no, and, or, not.",
]
"""What the merges are learned from: the scaffolding of a chat with tool calls."""


def build_tokenizer(config: TinyModelConfig) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with one token per digit, the same on every machine.

    One token per digit is what makes copying operands learnable for a tiny model. The vocabulary is filled up to
    `config.vocab_size` with reserved tokens where the small corpus offers too few merges.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=SPECIAL_TOKENS + TOOL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TOOL_TOKENS])
    fill = [
        AddedToken(f"<|reserved_{i}|>", special=True) for i in range(config.vocab_size - tokenizer.get_vocab_size())
    ]
    tokenizer.add_special_tokens(fill)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )


def build_model(config: TinyModelConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen2ForCausalLM:
    """A randomly initialised model of the given shape, in float32; the same weights for the same seed."""
    shape = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=True,
        initializer_range=config.hidden_size**-0.5,  # the usual 0.02 suits wide models; a narrow one learns far slower
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(shape)
    return model.float()
