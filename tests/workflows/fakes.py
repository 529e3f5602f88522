"""Runs with stages that train nothing, through the real command line.

As a program (`python fakes.py COMMAND ARGUMENTS`) it is `python -m workflows.COMMAND` with these stages.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workflows import stages
from workflows.stages import Stage

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def _fake(name: str, *parents: str, **more: Any) -> Stage:
    command = (str(HERE / "fake_stage.py"), name)
    saved = f"stages/{name}/saved"
    more = {"state": (saved,), "progress": saved, "outputs": ("made.txt",), "code": ("hpcrl/stage.py",)} | more
    return Stage(name=name, command=command, parents=parents, **more)


STAGES = (
    _fake("prepare", config=("seed", "prepare"), inputs=("prepare.splits.*.*.path",), shared=True),
    _fake("sft", "prepare", config=("sft",), shared=True),
    _fake("train", "prepare", "sft", config=("seed", "trainer")),
    _fake("evaluate", "train", config=("evaluate",)),
)
ALONE = "workflow.stages=[prepare]"
"""A run of one stage, where more would only take time."""
OVERRIDES = [
    "actor_rollout_ref.model.tiny={}",
    "workflow.stages=[prepare,sft,train,evaluate]",
    "prepare.splits={train: [{source: arithmetic, rows: 1}], test: [{source: arithmetic, rows: 1}],"
    " sft: [{source: arithmetic, rows: 1}]}",
    "data.train_batch_size=1",
    "sft.train_batch_size=1",
    "trainer.n_gpus_per_node=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.n=2",
    "cluster.stop_grace=2",
    "cluster.retry_delay=0.1",
    "trainer.experiment_name=fake",
]


def start(command: str, *arguments: str, root: Path, **environment: str) -> subprocess.Popen[str]:
    """`python -m workflows.COMMAND …` with the fake stages, in a process group of its own."""
    own = command == "submit" and not any(text.startswith("manifest=") for text in arguments)
    given = [*OVERRIDES, *arguments] if own else list(arguments)
    surroundings = os.environ | {"RUN_ROOT": str(root), "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "10.0.0.1:1"}
    surroundings |= environment
    return subprocess.Popen(
        [sys.executable, str(HERE / "fakes.py"), command, *given],
        cwd=ROOT,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def call(command: str, *arguments: str, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    process = start(command, *arguments, root=root, **environment)
    try:
        out, err = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_of(done: subprocess.CompletedProcess[str]) -> Path:
    """The run folder that a command said last."""
    return Path(done.stdout.splitlines()[-1])


def latest(root: Path) -> Path:
    return (root / "fake" / "latest").resolve()


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The condition's value once it is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {condition}")


def at_step(root: Path, step: int, stage: str = "prepare") -> Path:
    """Wait until the first attempt of the latest run's stage is at that step; the run's folder."""

    def reached() -> bool:
        try:
            beat = latest(root) / f"stages/{stage}/attempts/1/heartbeat"
            return bool(json.loads(beat.read_text())["step"] >= step)
        except (FileNotFoundError, json.JSONDecodeError):
            return False

    until(reached)
    return latest(root)


def ran(run: Path) -> list[str]:
    """Stages that ran to their end in a run, in order."""
    file = run / "ran.txt"
    return file.read_text().split() if file.exists() else []


def processes_of(run: Path) -> list[str]:
    """Command lines of living processes that name the run or work in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = entry.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
            place = os.readlink(entry / "cwd")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if line and (str(run) in line or place.startswith(str(run))):
            found.append(f"{entry.name} {line}")
    return found


if __name__ == "__main__":
    stages.STAGES = STAGES
    module = f"workflows.{sys.argv[1]}"
    sys.argv[1:] = sys.argv[2:]
    sys.path[0] = str(ROOT)
    runpy.run_module(module, run_name="__main__")
