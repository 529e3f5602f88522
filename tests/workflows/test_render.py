"""Job scripts against golden copies, which `make lint` also gives to shellcheck.

`WRITE_GOLDEN=1 pytest tests/workflows/test_render.py` writes the copies anew.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from workflows.render import JobScript
from workflows.stages import STAGES

GOLDEN = Path(__file__).parent / "golden"
BY_NAME = {stage.name: replace(stage, resources={"cpus_per_task": 2}) for stage in STAGES}
CASES = {
    "prepare": JobScript(
        stage=BY_NAME["prepare"],
        run=Path("/data/runs/tiny_grpo/20250101-120000-ab12"),
        token="0123abcd",
        scheduler="local",
        lock=Path("/data/runs/.cache/locks/prepare-0123456789abcdef"),
        python=Path("/home/ada/hpcrl/.venv/bin/python"),
    ),
    "fetch": JobScript(
        stage=BY_NAME["fetch"],
        run=Path("/data/runs/smollm2_grpo/20250101-120000-ab12"),
        token="0123abcd",
        scheduler="local",
        lock=Path("/data/runs/.cache/locks/fetch-0123456789abcdef"),
        python=Path("/home/ada/hpcrl/.venv/bin/python"),
    ),
    "train_odd_path": JobScript(
        stage=BY_NAME["train"],
        run=Path('/data/it\'s "odd" ;ü/exp\nx/20250101-120000-ab12'),
        token="0123abcd",
        scheduler="local",
        python=Path("/home/a da/hpcrl/.venv/bin/python"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_job_script_is_the_golden_one(name: str) -> None:
    text = CASES[name].render()
    golden = GOLDEN / f"{name}.sbatch"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_odd_paths_reach_bash_as_they_are(tmp_path: Path) -> None:
    odd = replace(CASES["train_odd_path"], run=Path('/data/it\'s $HOME `id` \\ "ü"/x\ny'))
    script = odd.render().replace('main "$@"', 'printf "%s" "$RUN"')
    file = tmp_path / "job.sbatch"
    file.write_text(script)
    done = subprocess.run(["bash", str(file)], capture_output=True, text=True, check=True)
    assert done.stdout == str(odd.run)
