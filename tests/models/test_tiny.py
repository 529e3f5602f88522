"""The tiny model and its tokenizer."""

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hpcrl.config.model import TinyModelConfig
from hpcrl.models.tiny import build_model, build_tokenizer

TOKENIZER = build_tokenizer(TinyModelConfig())


@given(st.text(max_size=60))
def test_every_text_survives_a_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_each_digit_is_a_token() -> None:
    assert [TOKENIZER.decode([token]) for token in TOKENIZER.encode("4096")] == ["4", "0", "9", "6"]


def test_the_vocabulary_has_the_size_asked_for() -> None:
    assert len(TOKENIZER) == 512
    assert len(build_tokenizer(TinyModelConfig(vocab_size=1024))) == 1024


def test_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "12 + 34 = ?"}]
    assert again.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>user\n12 + 34 = ?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert again.eos_token == "<|im_end|>" and again.pad_token != again.eos_token


def test_tools_are_named_in_the_system_message() -> None:
    tools = [{"type": "function", "function": {"name": "calculator", "description": "", "parameters": {}}}]
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    text = TOKENIZER.apply_chat_template(system, tools=tools, tokenize=False)
    assert text.startswith("<|im_start|>system\nBe brief.\nTools: calculator<|im_end|>\n<|im_start|>user\nhi")


def test_weights_depend_on_the_seed_alone() -> None:
    config = TinyModelConfig(hidden_size=32, num_hidden_layers=1)
    torch.manual_seed(7)
    first = build_model(config, TOKENIZER, seed=1)
    second = build_model(config, TOKENIZER, seed=1)
    other = build_model(config, TOKENIZER, seed=2)
    weight = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(first.state_dict()[weight], second.state_dict()[weight])
    assert not torch.equal(first.state_dict()[weight], other.state_dict()[weight])
