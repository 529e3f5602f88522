"""A stage command: how it ends is how its scheduler knows what happened."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from hpcrl.config import compose, to_dict
from hpcrl.config.seam import AttemptFolder, StopRequested
from hpcrl.utils.stop import StopFlag

STAGE = """
import sys
from hpcrl.config.seam import InfrastructureError, UserError
from hpcrl.stage import stage_main

def run(job):
    job.first_step, job.last_saved_step = 1, 2
    job.heartbeat("work", 3, 9)
    {body}

stage_main("train", run)
"""


def run_stage(folder: Path, body: str, stop: str | None = None) -> tuple[int, dict[str, object], str]:
    run_dir, attempt = folder / "run", folder / "run" / "stages" / "train" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (run_dir / "manifest.yaml").write_text(yaml.safe_dump({"config": to_dict(compose(["exp=tiny_grpo"]))}))
    if stop is not None:
        (attempt / "stop").write_text(stop)
    script = folder / "stage.py"
    script.write_text(STAGE.format(body=body))
    command = [sys.executable, str(script), f"run_dir={run_dir}", f"attempt_dir={attempt}"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, json.loads((attempt / "exit.json").read_text()), done.stderr


@pytest.mark.parametrize(
    ("body", "code", "kind"),
    [
        ("pass", 0, "done"),
        ("raise UserError('set x to 3')", 78, "user_error"),
        ("raise InfrastructureError('node2 is gone')", 69, "infrastructure"),
        ("raise OSError(28, 'full')", 73, "no_space"),
        ("raise KeyError('oops')", 1, "bug"),
        ("sys.exit(3)", 1, "bug"),
    ],
)
def test_the_exit_code_says_what_kind_of_end_it_was(tmp_path: Path, body: str, code: int, kind: str) -> None:
    status, record, stderr = run_stage(tmp_path, body)
    assert (status, record["code"], record["kind"]) == (code, code, kind)
    assert (record["first_step"], record["last_saved_step"]) == (1, 2)
    assert ("Traceback" in stderr) == (kind == "bug")


def test_a_stop_that_is_there_already_ends_the_stage_before_it_begins(tmp_path: Path) -> None:
    status, record, _ = run_stage(tmp_path, "raise KeyError('never reached')", stop="scheduler: preempted")
    assert status == 75
    assert "preempted" in str(record["reason"])


def test_arguments_that_are_not_a_stage_commands(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "hpcrl.train", "x=1"], capture_output=True, text=True)
    assert done.returncode == 78 and "usage" in done.stderr and "Traceback" not in done.stderr


def test_the_deadline_counts_the_margin_that_saving_needs(tmp_path: Path) -> None:
    attempt = AttemptFolder(tmp_path)
    attempt.deadline.write_text(str(time.time() + 50))
    assert StopFlag(attempt).reason() is None
    flag = StopFlag(attempt, margin=60)
    with pytest.raises(StopRequested, match="deadline"):
        flag.check()
    attempt.deadline.write_text("")
    assert StopFlag(attempt, margin=60).reason() is None
