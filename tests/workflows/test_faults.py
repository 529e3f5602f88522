"""Whatever is killed, no process stays and nothing finished is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fakes
import pytest

CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
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


def _by_hand(run: Path, stage: str) -> subprocess.CompletedProcess[str]:
    script = str(run / f"stages/{stage}/job.sbatch")
    return subprocess.run(["bash", script], capture_output=True, text=True, check=False, timeout=60)


def test_a_job_by_hand_does_not_join_one_that_runs(tmp_path: Path) -> None:
    process = fakes.start("submit", fakes.ALONE, root=tmp_path, FAKE_PREPARE=LONG)
    run = fakes.at_step(tmp_path, 1)
    refused = _by_hand(run, "prepare")
    assert (refused.returncode, "is running already" in refused.stderr) == (75, True)
    command = [sys.executable, "-m", "workflows.job", "begin", "--run", str(run), "--stage", "prepare", "--pid", "1"]
    refused = subprocess.run(command, cwd=run / "code", capture_output=True, text=True, check=False, env=CLEAN)
    assert (refused.returncode, "attempt 1 is running already" in refused.stderr) == (75, True)
    process.send_signal(signal.SIGINT)
    assert _end(process)[0] == 75
    assert [path.name for path in (run / "stages/prepare/attempts").iterdir()] == ["1"]


def test_an_attempt_that_cannot_begin_leaves_the_reason_and_spoils_nothing(tmp_path: Path) -> None:
    stages = "workflow.stages=[prepare,sft]"
    done = fakes.call("submit", stages, root=tmp_path, FAKE_PREPARE="exit=1 until=1")
    run = fakes.run_of(done)
    assert _by_hand(run, "sft").returncode == 78
    assert "sft waits for prepare, which is not finished" in _record(run, 1, "sft")["reason"]
    assert _record(run, 1, "sft")["next"]["action"] == "stop"
    state = json.loads(fakes.call("status", run.name, "--json", root=tmp_path).stdout)[0]["stages"][1]
    assert (state["state"], state["kind"]) == ("FAILED", "user_error")
    assert "waits for prepare" in fakes.call("logs", run.name, "sft", root=tmp_path).stdout
    done = fakes.call("retry", run.name, root=tmp_path)
    assert done.returncode == 0, done.stderr
    assert fakes.ran(run) == ["prepare", "sft"]


def test_a_cache_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/unfinished").touch()
    done = fakes.call("submit", fakes.ALONE, root=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "could not be put into the cache" in done.stderr
    assert (fakes.run_of(done) / "stages/prepare/DONE").exists()


def test_a_stage_over_its_time_stops_and_goes_on_in_the_next_attempt(tmp_path: Path) -> None:
    limit = "workflow.resources.prepare.time=0:02"
    done = fakes.call("submit", fakes.ALONE, limit, root=tmp_path, FAKE_PREPARE="steps=30 pause=0.1")
    assert done.returncode == 0, done.stderr
    run = fakes.run_of(done)
    assert (_record(run, 1)["kind"], _record(run, 1)["next"]["action"]) == ("stopped", "again")
    assert "step 1 of" not in (run / "stages/prepare/attempts/2/output.log").read_text()


def test_logs_follow_from_the_first_attempt_to_the_last(tmp_path: Path) -> None:
    """From before anything is written, over a delay before another attempt and over the end of a stage."""
    arguments = ("workflow.stages=[prepare,sft]", "cluster.retry_delay=1.5", "--detach")
    done = fakes.call("submit", *arguments, root=tmp_path, FAKE_PREPARE="steps=5 pause=0.1 exit=69 until=1")
    followed = fakes.call("logs", fakes.run_of(done).name, "--follow", root=tmp_path)
    assert followed.returncode == 0, followed.stderr
    run = fakes.run_of(done)
    logs = [
        run / f"stages/{name}/output.log" for name in ("prepare/attempts/1", "prepare/attempts/2", "sft/attempts/1")
    ]
    assert followed.stdout == "".join(log.read_text() for log in logs)
    assert "exit code 0; done" in followed.stdout.splitlines()[-1]


def test_a_detached_run_is_seen_and_cancelled(tmp_path: Path) -> None:
    done = fakes.call("submit", fakes.ALONE, "--detach", root=tmp_path, FAKE_PREPARE=f"{LONG} orphan=1")
    assert done.returncode == 0
    run = fakes.at_step(tmp_path, 1)
    assert fakes.run_of(done) == run

    def seen() -> tuple[str, int | None]:
        state = json.loads(fakes.call("status", "fake", "--json", root=tmp_path).stdout)[0]
        return state["state"], state["stages"][0]["total_steps"]

    fakes.until(lambda: seen() == ("RUNNING", 400))  # the fake stage does not write its heartbeat in one piece
    again = fakes.call("resume", "fake", root=tmp_path)
    assert again.returncode == 78
    assert "running already" in again.stderr
    cancelled = fakes.call("cancel", run.name, root=tmp_path)
    assert cancelled.returncode == 0, cancelled.stderr
    assert not fakes.processes_of(run)
    state = json.loads(fakes.call("status", str(run), "--json", root=tmp_path).stdout)[0]
    assert (state["state"], state["stages"][0]["reason"]) == ("STOPPED", "stopped by the fake")
