"""The engine on real FSDP2 and gloo: the same numbers as a plain model, on one rank and on two."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import AutoModelForCausalLM, AutoTokenizer

from hpcrl import DataProto
from hpcrl.config.actor import FSDPConfig, OptimConfig
from hpcrl.config.model import ModelConfig, TinyModelConfig
from hpcrl.models.tiny import build_model, build_tokenizer
from hpcrl.trainer.ppo.core_algos import agg_loss
from hpcrl.workers.engine.engine import TrainEngine

SHAPE = TinyModelConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2)
ROWS, PROMPT, RESPONSE = 6, 8, 10


def ragged_batch() -> DataProto:
    draw = torch.Generator().manual_seed(3)
    attention = torch.zeros(ROWS, PROMPT + RESPONSE, dtype=torch.int64)
    for row in attention:
        prompt, response = (
            torch.randint(1, PROMPT + 1, (1,), generator=draw),
            torch.randint(0, RESPONSE + 1, (1,), generator=draw),
        )
        row[PROMPT - int(prompt) : PROMPT + int(response)] = 1
    tokens = torch.randint(0, 512, attention.shape, generator=draw)
    mask = attention[:, PROMPT:] * (torch.rand(ROWS, RESPONSE, generator=draw) < 0.7)
    return DataProto.from_dict(
        {
            "prompts": tokens[:, :PROMPT],
            "responses": tokens[:, PROMPT:],
            "attention_mask": attention,
            "response_mask": mask,
        }
    )


def plain_log_probs(model: torch.nn.Module, data: DataProto, temperature: float) -> torch.Tensor:
    answer = torch.zeros(ROWS, RESPONSE)
    for i, attention in enumerate(data.batch["attention_mask"].bool()):
        sequence = torch.cat([data.batch["prompts"][i], data.batch["responses"][i]])[attention]
        count = int(attention[PROMPT:].sum())
        log_probs = torch.log_softmax(model(sequence[None]).logits[0].float() / temperature, dim=-1)
        picked = log_probs[:-1].gather(-1, sequence[1:, None])[:, 0]
        answer[i, :count] = picked[len(picked) - count :]
    return answer


def rank_main(rank: int, world_size: int, port: int, folder: str, sizes: list[int]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    tokenizer = build_tokenizer(SHAPE)
    engine = TrainEngine(
        build_model(SHAPE, tokenizer, seed=0),
        ModelConfig(enable_gradient_checkpointing=True),
        FSDPConfig(dtype="fp32"),
        device="cpu",
        optim=OptimConfig(lr=1e-2),
        total_steps=10,
    )
    data = ragged_batch()
    tokens = int(data.batch["response_mask"].sum())

    def loss_fn(micro: DataProto, log_probs: torch.Tensor, entropy: Any) -> tuple[torch.Tensor, dict[str, float]]:
        mask = micro.batch["response_mask"]
        loss = agg_loss(-log_probs, mask, "token-mean", dp_size=world_size, batch_num_tokens=tokens)
        return loss, {"loss": loss.item()}

    def step() -> dict[str, float]:
        share = data[list(range(rank, ROWS, world_size))]
        return engine.update(share, loss_fn, temperature=1.0, size=sizes[rank], max_tokens=None)

    log_probs, entropies = engine.compute_log_probs(data, temperature=0.7, size=4, max_tokens=None, with_entropy=True)
    steps = [step(), step()]
    checkpoint = Path(folder) / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    engine.save(checkpoint)
    steps.append(step())
    engine.load(checkpoint)
    again = step()
    engine.export(Path(folder) / "model", tokenizer)
    if rank == 0:
        torch.save(log_probs, Path(folder) / "log_probs.pt")
        report = {"steps": steps, "again": again, "entropy": float(entropies.max())}
        (Path(folder) / "report.json").write_text(json.dumps(report))
    dist.destroy_process_group()


def run(folder: Path, sizes: list[int]) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir()
    mp.spawn(rank_main, (len(sizes), port, str(folder), sizes), nprocs=len(sizes))
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("engine") / "two"
    return folder, run(folder, [1, 3])


def test_packed_sharded_log_probs_are_those_of_the_plain_model(two_ranks: tuple[Path, dict[str, Any]]) -> None:
    model = build_model(SHAPE, build_tokenizer(SHAPE), seed=0)
    with torch.no_grad():
        expected = plain_log_probs(model, ragged_batch(), 0.7)
    torch.testing.assert_close(torch.load(two_ranks[0] / "log_probs.pt"), expected, atol=2e-6, rtol=1e-5)
    assert 0 < two_ranks[1]["entropy"] < 6.24


def test_a_step_does_not_depend_on_ranks_or_micro_batches(
    two_ranks: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    one = run(tmp_path / "one", [6])
    for mine, theirs in zip(one["steps"], two_ranks[1]["steps"], strict=True):
        assert mine == pytest.approx(theirs, rel=2e-4)
    assert one["steps"][2]["loss"] < one["steps"][0]["loss"]


def test_a_loaded_checkpoint_takes_the_very_same_step(two_ranks: tuple[Path, dict[str, Any]]) -> None:
    assert two_ranks[1]["again"] == two_ranks[1]["steps"][2]


def test_the_export_is_a_normal_model_folder(two_ranks: tuple[Path, dict[str, Any]]) -> None:
    folder = two_ranks[0] / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.architectures == ["Qwen2ForCausalLM"]
    answer = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False)
    assert answer.shape[1] > 3
    assert len(AutoTokenizer.from_pretrained(folder)) == 512
