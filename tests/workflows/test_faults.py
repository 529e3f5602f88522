"""Whatever is killed, no process stays and nothing finished is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import fakes
import pytest

LONG = "steps=400 pause=0.05"
SHORT = "steps=20 pause=0.05"


def _end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def _record(run: Path, attempt: int, stage: str = "prepare") -> dict[str, Any]:
    return dict(json.loads((run / f"stages/{stage}/attempts/{attempt}/exit.json").read_text()))


def _supervisor(run: Path) -> int:
    return int(json.loads((run / "sessions.jsonl").read_text().splitlines()[-1])["pid"])


def _shell(run: Path) -> int:
    return int(json.loads((run / "stages/prepare/attempts/1/job.json").read_text())["process"]["pid"])


def test_ctrl_c_saves_says_how_to_go_on_and_resume_continues(tmp_path: Path) -> None:
    process = fakes.start("submit", root=tmp_path, FAKE_TRAIN=LONG)
    run = fakes.at_step(tmp_path, 2, "train")
    process.send_signal(signal.SIGINT)
    code, out, err = _end(process)
    assert code == 75
    assert out.splitlines()[-1] == str(run)
    assert f"make resume RUN={run.name}" in err
    record = _record(run, 1, "train")
    assert (record["kind"], record["next"]["action"]) == ("stopped", "stop")
    assert not fakes.processes_of(run)
    done = fakes.call("resume", "fake", root=tmp_path, FAKE_TRAIN="steps=3")
    assert done.returncode == 0, done.stderr
    assert fakes.run_of(done) == run
    assert fakes.ran(run) == ["prepare", "sft", "train", "evaluate"]  # each once
    assert "step 1 of" not in (run / "stages/train/attempts/2/output.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_in_order_too(tmp_path: Path, number: signal.Signals) -> None:
    process = fakes.start("submit", fakes.ALONE, root=tmp_path, FAKE_PREPARE=LONG)
    run = fakes.at_step(tmp_path, 1)
    process.send_signal(number)
    assert _end(process)[0] == 75
    assert _record(run, 1)["kind"] == "stopped"


@pytest.mark.slow
def test_the_second_ctrl_c_does_not_wait_for_a_stage_that_does_not_stop(tmp_path: Path) -> None:
    behaviour = f"{LONG} stubborn=1 orphan=1"
    process = fakes.start("submit", fakes.ALONE, "cluster.stop_grace=60", root=tmp_path, FAKE_PREPARE=behaviour)
    run = fakes.at_step(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert _end(process)[0] == 75
    assert time.monotonic() - began < 30
    assert _record(run, 1)["reason"].startswith("killed by SIGKILL")
    assert not fakes.processes_of(run)


def test_kill_9_of_submit_leaves_no_process(tmp_path: Path) -> None:
    process = fakes.start("submit", fakes.ALONE, root=tmp_path, FAKE_PREPARE=f"{LONG} orphan=1")
    run = fakes.at_step(tmp_path, 2)
    process.kill()
    _end(process)
    fakes.until(lambda: not fakes.processes_of(run), 20)
    assert _record(run, 1)["next"]["action"] == "stop"
    done = fakes.call("resume", "fake", root=tmp_path, FAKE_PREPARE="steps=3")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["supervisor", "shell", "stage"])
def test_kill_9_of_a_part_of_the_job_gives_another_attempt_that_continues(tmp_path: Path, whom: str) -> None:
    process = fakes.start("submit", fakes.ALONE, root=tmp_path, FAKE_PREPARE=f"{SHORT} orphan=1")
    run = fakes.at_step(tmp_path, 3)
    stage = int((run / "stages/prepare/attempts/1/pid").read_text())
    os.kill({"supervisor": _supervisor(run), "shell": _shell(run), "stage": stage}[whom], signal.SIGKILL)
    code, _, err = _end(process)
    assert code == 0, err
    assert "killed by SIGKILL" in err
    assert _record(run, 1)["kind"] == "infrastructure"
    assert _record(run, 1)["last_saved_step"] >= 2
    assert _record(run, 2)["kind"] == "done"
    assert "step 1 of" not in (run / "stages/prepare/attempts/2/output.log").read_text()
    assert not fakes.processes_of(run)


def test_what_outlives_kill_9_of_submit_and_supervisor_is_swept_by_resume(tmp_path: Path) -> None:
    process = fakes.start("submit", fakes.ALONE, root=tmp_path, FAKE_PREPARE=f"{LONG} orphan=1")
    run = fakes.at_step(tmp_path, 2)
    process.kill()
    for pid in (_supervisor(run), _shell(run)):
        os.kill(pid, signal.SIGKILL)
    _end(process)
    assert fakes.processes_of(run)
    done = fakes.call("resume", "fake", root=tmp_path, FAKE_PREPARE="steps=3")
    assert done.returncode == 0, done.stderr
    assert "that an earlier attempt" in done.stderr
    assert not fakes.processes_of(run)


def test_a_detached_run_is_seen_and_cancelled(tmp_path: Path) -> None:
    done = fakes.call("submit", fakes.ALONE, "--detach", root=tmp_path, FAKE_PREPARE=f"{LONG} orphan=1")
    assert done.returncode == 0
    run = fakes.at_step(tmp_path, 1)
    assert fakes.run_of(done) == run
    state = json.loads(fakes.call("status", "fake", "--json", root=tmp_path).stdout)[0]
    assert (state["state"], state["stages"][0]["total_steps"]) == ("RUNNING", 400)
    again = fakes.call("resume", "fake", root=tmp_path)
    assert again.returncode == 78
    assert "running already" in again.stderr
    cancelled = fakes.call("cancel", run.name, root=tmp_path)
    assert cancelled.returncode == 0, cancelled.stderr
    assert not fakes.processes_of(run)
    state = json.loads(fakes.call("status", str(run), "--json", root=tmp_path).stdout)[0]
    assert (state["state"], state["stages"][0]["reason"]) == ("STOPPED", "stopped by the fake")
