"""The main job, shortened: all stages through the real command, on real Ray with two ranks.

One run is left alone, one is killed in the middle of training and resumed: both must end with the same model.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from hpcrl.config.seam import RunFolder
from hpcrl.trainer.tracking import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
SHORT = [
    "exp=tiny_grpo",
    # A single digit to copy: what takes some hundred steps with two is learned in a hundred or so.
    "prepare.splits.sft=[{source: arithmetic, rows: 2000, options: {demonstrations: true, max_operand: 10}}]",
    "prepare.splits.train=[{source: arithmetic, rows: 64, options: {max_operand: 10}}]",
    "prepare.splits.test=[{source: arithmetic, rows: 24, options: {max_operand: 10}}]",
    "sft.total_training_steps=150",
    "sft.train_batch_size=32",
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "trainer.total_training_steps=12",
    "trainer.save_freq=3",
    "trainer.test_freq=6",
    "evaluate.n=2",
]


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"workflows.{name}", *arguments]


def last_line(text: str) -> Path:
    return Path(text.strip().splitlines()[-1])


def finish(*arguments: str, name: str = "submit", root: Path) -> RunFolder:
    done = subprocess.run(command(name, *arguments, f"run_root={root}"), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-6000:]
    return RunFolder(last_line(done.stdout))


def weights(run: RunFolder) -> bytes:
    return (run.stage("train").out / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def undisturbed(root: Path) -> RunFolder:
    return finish(*SHORT, root=root)


def test_every_stage_is_done_and_reward_rose(undisturbed: RunFolder) -> None:
    for stage in ("prepare", "sft", "train", "evaluate"):
        assert undisturbed.stage(stage).done.exists()
    lines = read_metrics(undisturbed.metrics)
    assert [line["step"] for line in lines] == list(range(13))
    rewards = [line["critic/rewards/mean"] for line in lines[1:]]
    assert sum(rewards[-4:]) > sum(rewards[:4]) + 0.2, rewards
    assert [line["step"] for line in lines if "val-core/hpcrl/arithmetic/reward/mean@1" in line] == [0, 6, 12]


def test_metrics_carry_the_names_that_users_know(undisturbed: RunFolder) -> None:
    line = read_metrics(undisturbed.metrics)[3]
    for name in (
        "critic/score/mean",
        "critic/advantages/max",
        "response_length/mean",
        "actor/pg_loss",
        "actor/pg_clipfrac",
        "actor/ppo_kl",
        "actor/kl_loss",
        "actor/entropy",
        "actor/grad_norm",
        "actor/lr",
        "timing_s/gen",
        "timing_s/update_actor",
        "timing_s/step",
        "perf/throughput",
        "num_turns/mean",
        "training/global_step",
    ):
        assert isinstance(line[name], float | int), name
    assert line["training/rollout_probs_diff_max"] < 1e-3  # the engine and the trainer mean the same by a log-prob


def test_rollouts_are_recorded_with_an_exact_mask(undisturbed: RunFolder) -> None:
    rows = pl.read_parquet(undisturbed.rollouts / "step_000012.parquet")
    assert len(rows) == 64
    tokenizer = AutoTokenizer.from_pretrained(undisturbed.stage("train").out / "model")
    called = 0
    for row in rows.iter_rows(named=True):
        messages = json.loads(row["messages"])
        sampled = [t for t, m in zip(row["response_ids"], row["response_mask"], strict=True) if m]
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        text = tokenizer.decode(sampled).replace(tokenizer.eos_token, "")
        assert text == "".join(said)
        called += len(json.loads(row["tool_calls"]))
        assert len(row["rollout_log_probs"]) == len(row["response_ids"])
    assert called > 0


def test_the_evaluation_compares_with_the_model_before(undisturbed: RunFolder) -> None:
    result = json.loads((undisturbed.stage("evaluate").out / "eval.json").read_text())
    for name in ("accuracy", "accuracy_before", "accuracy_greedy", "accuracy_before_greedy"):
        assert 0 <= result[name] <= 1
    assert result["rows"] == 24
    assert set(result["pass@k"]) == {"1", "2"} and result["pass@k"]["1"] == pytest.approx(result["accuracy"])
    samples = pl.read_parquet(undisturbed.stage("evaluate").out / "samples_trained_sampled.parquet")
    assert len(samples) == 48 and samples["correct"].mean() == pytest.approx(result["accuracy"])


def test_the_exported_model_answers(undisturbed: RunFolder) -> None:
    folder = undisturbed.stage("train").out / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    tools = yaml.safe_load((ROOT / "configs/tools/calculator.yaml").read_text())["tools"]
    question = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 3 = ?"}],
        tools=[tool["tool_schema"] for tool in tools],
        add_generation_prompt=True,
        tokenize=False,
    )
    ids = tokenizer(question, add_special_tokens=False, return_tensors="pt")["input_ids"]
    answer = model.generate(ids, max_new_tokens=40, do_sample=False)[0, ids.shape[1] :].tolist()
    assert answer[-1] == tokenizer.eos_token_id
    text = tokenizer.decode(answer)
    assert text.startswith(("<tool_call>\n{", "#### ")), text


def test_a_second_run_with_the_seed_is_bit_equal_and_takes_the_cache(root: Path, undisturbed: RunFolder) -> None:
    again = finish(*SHORT, "workflow.stages=[prepare,sft,train]", root=root)
    assert weights(again) == weights(undisturbed)
    assert not again.stage("sft").attempts(), "sft must come from the cache"


def test_a_run_killed_in_training_resumes_to_the_same_model(root: Path, undisturbed: RunFolder) -> None:
    before = set(root.glob("tiny_grpo/*"))
    arguments = command("submit", *SHORT, "workflow.stages=[prepare,sft,train]", f"run_root={root}")
    process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    run = wait_for(lambda: next((RunFolder(p) for p in root.glob("tiny_grpo/*") if p not in before), None))
    wait_for(lambda: any(line["step"] >= 5 for line in read_metrics(run.metrics)))
    words = f"-m hpcrl.train run_dir={run.path}"
    stage = next(pid for pid in processes() if words in command_of(pid) and "bash" not in command_of(pid))
    family = {(pid, started(pid)) for pid in [stage, *descendants(stage)]}
    assert len(family) > 5, "Ray's own processes and two workers"
    os.kill(process.pid, signal.SIGKILL)
    os.kill(stage, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not [pid for pid, start in family if started(pid) == start], seconds=60)
    assert not run.stage("train").done.exists()
    resumed = finish(str(run.path), name="resume", root=root)
    assert resumed.path == run.path
    lines = read_metrics(run.metrics)
    assert [line["step"] for line in lines] == list(range(13))
    assert {line["attempt"] for line in lines} == {1, 2}
    assert weights(run) == weights(undisturbed)


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def descendants(pid: int) -> list[int]:
    children = [child for child in processes() if status_of(child)[1:2] == [str(pid)]]
    return children + [grandchild for child in children for grandchild in descendants(child)]


def started(pid: int) -> str | None:
    """Start time of a live process; None where there is none, or only its zombie."""
    status = status_of(pid)
    return status[19] if status and status[0] != "Z" else None


def status_of(pid: int) -> list[str]:
    """/proc/PID/stat from the state on: state, parent, …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_for(condition, seconds: float = 300):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s")
