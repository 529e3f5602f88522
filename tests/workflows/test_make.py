"""The Makefile hands on what the user says, whatever characters stand in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ["setup", "submit", "status", "logs", "resume", "retry", "cancel", "test", "test-fast", "lint"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with an odd name, the Makefile, and an interpreter that writes down its arguments."""
    folder = tmp_path / 'it\'s "odd" ü'
    (folder / ".venv/bin").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    python = folder / ".venv/bin/python"
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$@" "root=$RUN_ROOT" | grep -vx "root="\n')
    python.chmod(0o755)
    (folder / ".venv/.installed").touch()
    return folder


def _make(folder: Path, *arguments: str, **environment: str) -> list[str]:
    surroundings = {k: v for k, v in os.environ.items() if k not in ("RUN_ROOT", "MAKEFLAGS", "MAKELEVEL")}
    command = ["make", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=surroundings | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_make_alone_lists_the_targets(checkout: Path) -> None:
    listed = [line.split()[1] for line in _make(checkout)]
    assert listed == ["help", *TARGETS]


def test_arguments_reach_the_command_as_they_are(checkout: Path) -> None:
    odd = 'it\'s "odd" ü;*'
    assert _make(checkout, "submit", f"EXP={odd}", "ARGS=seed=1 'a.b=x y'", "DRY_RUN=1", f"RUN_ROOT={odd}") == [
        *("-m", "workflows.submit", f"exp={odd}", "--end-with-parent", "--dry-run", "seed=1", "a.b=x y"),
        f"root={odd}",
    ]
    assert _make(checkout, "status", f"RUN={odd}", RUN_ROOT="/a b/$x") == [
        *("-m", "workflows.status", odd, "root=/a b/$x"),
    ]


def test_the_flags_of_the_targets(checkout: Path) -> None:
    assert _make(checkout, "submit", "EXP=e", "DETACH=1")[2:] == ["exp=e", "--detach"]
    assert _make(checkout, "submit", "EXP=e", "DETACH=0")[2:] == ["exp=e", "--end-with-parent"]
    assert _make(checkout, "logs", "RUN=r", "STAGE=train", "FOLLOW=1")[1:] == [
        "workflows.logs",
        "r",
        "train",
        "--follow",
    ]
    assert _make(checkout, "resume", "EXP=e")[1:] == ["workflows.resume", "e", "--end-with-parent"]
    assert _make(checkout, "cancel", "RUN=r")[1:] == ["workflows.cancel", "r"]


def test_the_environment_is_made_when_it_is_out_of_date(checkout: Path) -> None:
    (checkout / ".venv/.installed").unlink()
    done = subprocess.run(["make", "status"], cwd=checkout, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["-m", "workflows.status"]
    installed = done.stderr.splitlines()
    assert (
        installed.index("constraints/cpu.txt") < installed.index(".[dev]") < installed.index("constraints/weights.txt")
    )
    assert _make(checkout, "status") == ["-m", "workflows.status"]


def test_another_torch_is_remembered(checkout: Path) -> None:
    url = "https://example.org/cu999"
    first = subprocess.run(
        ["make", "setup", f"TORCH_INDEX={url}"], cwd=checkout, capture_output=True, text=True, check=True
    )
    (checkout / ".venv/.installed").unlink()
    second = subprocess.run(["make", "status"], cwd=checkout, capture_output=True, text=True, check=True)
    for done in (first, second):
        assert url in done.stderr
        assert "constraints/cpu.txt" not in done.stderr
    forced = ["--force-reinstall", "--index-url", url, "torch"]
    said = first.stderr.splitlines()
    assert said[said.index("--force-reinstall") :][:4] == forced  # pip leaves a torch that is there alone otherwise
    assert "--force-reinstall" not in second.stderr
    third = subprocess.run(["make", "setup", "TORCH_INDEX="], cwd=checkout, capture_output=True, text=True, check=True)
    said = third.stderr.splitlines()
    assert said[said.index("--force-reinstall") :][:4] == ["--force-reinstall", "-c", "constraints/cpu.txt", "torch"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints/cpu.txt", "constraints/weights.txt"])
def test_a_changed_file_is_installed(checkout: Path, name: str) -> None:
    for known in ("pyproject.toml", "constraints/cpu.txt", "constraints/weights.txt"):
        os.utime(checkout / known, (1, 1))
    assert _make(checkout, "status") == ["-m", "workflows.status"]
    os.utime(checkout / name)
    os.utime(checkout / ".venv/.installed", (2, 2))
    done = subprocess.run(["make", "status"], cwd=checkout, capture_output=True, text=True, check=True)
    assert ".[dev]" in done.stderr
