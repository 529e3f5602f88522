"""Whole runs with stages that train nothing, through the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import fakes
import pytest
import yaml

from hpcrl.config import UserError
from workflows.run import find_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; its root has an odd name."""
    root = tmp_path_factory.mktemp("odd 'name\" ü $HOME;x")
    done = fakes.call("submit", root=root)
    assert done.returncode == 0, done.stderr
    return fakes.run_of(done)


def test_the_last_line_is_the_run_folder_and_progress_is_on_stderr(tmp_path: Path) -> None:
    done = fakes.call("submit", fakes.ALONE, root=tmp_path)
    assert done.stdout == f"{fakes.latest(tmp_path)}\n"
    assert "step 1 of 1" in done.stderr


def test_the_run_folder_is_laid_as_designed(finished: Path) -> None:
    assert finished.parent.name == "fake"
    assert (finished.parent / "latest").resolve() == finished
    manifest = yaml.safe_load((finished / "manifest.yaml").read_text())
    assert manifest["config"]["trainer"]["experiment_name"] == "fake"
    assert {"git", "versions", "stages", "inputs", "code"} <= set(manifest)
    for stage in ("prepare", "sft", "train", "evaluate"):
        folder = finished / "stages" / stage
        done = json.loads((folder / "DONE").read_text())
        assert set(done["outputs"]) == {"made.txt"}
        assert len(done["outputs"]["made.txt"]["sha256"]) == 64
        assert json.loads((folder / "attempts/1/exit.json").read_text())["code"] == 0
        assert "step 1 of 1" in (folder / "attempts/1/output.log").read_text()
    assert (finished / "code/workflows/submit.py").exists()
    assert not (finished / "code/.git").exists()


def test_a_finished_run_is_not_run_again(finished: Path) -> None:
    done = fakes.call("resume", str(finished), root=finished.parents[1])
    assert done.returncode == 0
    assert done.stderr.count("finished before") == 4
    assert fakes.ran(finished) == ["prepare", "sft", "train", "evaluate"]


def test_another_run_takes_prepare_and_sft_from_the_cache(finished: Path) -> None:
    done = fakes.call("submit", root=finished.parents[1])
    run = fakes.run_of(done)
    assert run != finished
    assert fakes.ran(run) == ["train", "evaluate"]
    assert done.stderr.count("taken from the cache") == 2
    assert (run / "stages/sft/out/made.txt").read_text() == "sft made this\n"


def test_a_changed_config_is_run_anew_and_the_reason_is_told(finished: Path) -> None:
    done = fakes.call("submit", "sft.total_epochs=2", "workflow.stages=[prepare,sft]", root=finished.parents[1])
    assert fakes.ran(fakes.run_of(done)) == ["sft"]
    assert "config changed (sft.total_epochs: 1 -> 2)" in done.stderr


@pytest.mark.slow
def test_a_damaged_cache_entry_is_set_aside(tmp_path: Path) -> None:
    first = fakes.run_of(fakes.call("submit", fakes.ALONE, root=tmp_path))
    fingerprint = json.loads((first / "stages/prepare/DONE").read_text())["fingerprint"]
    made = tmp_path / ".cache" / fingerprint / "out/made.txt"
    made.unlink()
    made.write_text("PREPARE MADE THIS\n")
    second = fakes.call("submit", fakes.ALONE, root=tmp_path)
    assert fakes.ran(fakes.run_of(second)) == ["prepare"]
    assert "damaged" in second.stderr
    third = fakes.call("submit", fakes.ALONE, root=tmp_path)
    assert fakes.ran(fakes.run_of(third)) == []


@pytest.mark.slow
def test_done_without_its_content_is_run_again(tmp_path: Path) -> None:
    run = fakes.run_of(fakes.call("submit", fakes.ALONE, root=tmp_path))
    shutil.rmtree(run / "stages/prepare/out")
    shutil.rmtree(tmp_path / ".cache")
    done = fakes.call("resume", run.name, root=tmp_path)
    assert "marked DONE, but out/made.txt is missing" in done.stderr
    assert fakes.ran(run) == ["prepare", "prepare"]


@pytest.mark.slow
def test_a_changed_input_or_code_is_run_again_and_the_stale_state_set_aside(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    source = f"{{source: file, path: '{rows}', columns: {{prompt: q, ground_truth: a}}}}"
    splits = f"prepare.splits={{train: [{source}], test: [{source}], sft: [{source}]}}"
    run = fakes.run_of(fakes.call("submit", splits, fakes.ALONE, root=tmp_path))
    rows.write_text('{"q": 1}\n')
    done = fakes.call("resume", run.name, root=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "inputs changed" in done.stderr
    assert fakes.ran(run) == ["prepare", "prepare"]
    (run / "code/hpcrl/stage.py").write_text("# other\n")
    done = fakes.call("resume", run.name, root=tmp_path)
    assert "code changed (hpcrl/stage.py)" in done.stderr
    assert fakes.ran(run) == ["prepare", "prepare", "prepare"]
    assert (run / "stages/prepare/stale/1/saved").exists()


@pytest.mark.slow
def test_two_submissions_at_once_share_what_the_first_prepares(tmp_path: Path) -> None:
    arguments = ("submit", fakes.ALONE)
    processes = [fakes.start(*arguments, root=tmp_path, FAKE_PREPARE="steps=20 pause=0.1") for _ in range(2)]
    ends = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    runs = [Path(out.splitlines()[-1]) for out, _ in ends]
    assert sorted(fakes.ran(run) for run in runs) == [[], ["prepare"]]
    assert "another run is making the same" in ends[0][1] + ends[1][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "code", "attempts", "said"),
    [
        ("exit=78 until=9", 78, 1, "make retry"),
        ("exit=73 until=9", 73, 1, "make resume"),
        ("exit=69 until=1", 0, 2, "trying again"),
        ("exit=69 until=9", 69, 4, "3 attempts in a row"),
        ("nothing=1", 1, 1, "did not make out/made.txt"),
    ],
)
def test_the_exit_code_table(tmp_path: Path, behaviour: str, code: int, attempts: int, said: str) -> None:
    done = fakes.call("submit", fakes.ALONE, root=tmp_path, FAKE_PREPARE=behaviour)
    assert done.returncode == code, done.stderr
    run = fakes.run_of(done)
    assert len(list((run / "stages/prepare/attempts").iterdir())) == attempts
    assert said in done.stderr
    assert (run / "stages/prepare/DONE").exists() == (code == 0)


@pytest.mark.slow
def test_only_retry_starts_a_failed_stage_again(tmp_path: Path) -> None:
    done = fakes.call("submit", fakes.ALONE, root=tmp_path, FAKE_PREPARE="exit=1 until=1")
    assert done.returncode == 1
    run = fakes.run_of(done)
    refused = fakes.call("resume", "fake", root=tmp_path)
    assert refused.returncode == 78
    assert "make retry" in refused.stderr
    assert fakes.call("retry", "fake", root=tmp_path).returncode == 0
    assert fakes.ran(run) == ["prepare"]
    assert fakes.call("retry", "fake", root=tmp_path).returncode == 78


def test_a_run_whose_folder_git_ignores_runs_again(finished: Path, tmp_path: Path) -> None:
    """The run lies below `runs/` of a repository that ignores it; an override is read from the caller's folder."""
    repository = tmp_path / "repository"
    run = repository / "runs/fake" / finished.name
    shutil.copytree(finished, run)
    (repository / ".gitignore").write_text("runs/\n")
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (run / "code.diff").write_bytes(b"+caf\xe9\n")
    done = fakes.call("submit", f"manifest={run / 'manifest.yaml'}", fakes.ALONE, root=tmp_path / "again")
    assert done.returncode == 0, done.stderr
    again = fakes.run_of(done)
    assert (again / "code/workflows/submit.py").exists()
    before, after = (yaml.safe_load((path / "manifest.yaml").read_text()) for path in (run, again))
    assert (before["code"], before["git"]) == (after["code"], after["git"])
    assert (again / "code.diff").read_bytes() == b"+caf\xe9\n"


def test_a_manifest_runs_again(finished: Path, tmp_path: Path) -> None:
    manifest = f"manifest={finished / 'manifest.yaml'}"
    process = fakes.call("submit", manifest, fakes.ALONE, root=tmp_path)
    assert process.returncode == 0, process.stderr
    run = fakes.run_of(process)
    assert run.is_relative_to(tmp_path)
    assert "with the code of that run" in process.stderr
    before, after = (yaml.safe_load((path / "manifest.yaml").read_text()) for path in (finished, run))
    assert before["code"] == after["code"]
    assert before["config"]["prepare"] == after["config"]["prepare"]


def test_a_run_is_found_by_what_can_only_be_it(tmp_path: Path) -> None:
    for name in ("one/20250101-1", "two/20250101-1", "two/20250102-2"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.yaml").write_text("config: {}\n")
    (tmp_path / "two/latest").symlink_to("20250102-2")
    assert find_run(tmp_path, "two").name == "two/20250102-2"
    assert find_run(tmp_path, "two/latest").name == "two/20250102-2"
    assert find_run(tmp_path, "20250102-2").name == "two/20250102-2"
    assert find_run(tmp_path, "one/20250101-1").name == "one/20250101-1"
    with pytest.raises(UserError, match=r"one/20250101-1, .*two/20250101-1"):
        find_run(tmp_path, "20250101-1")
    for text in ("latest", "nowhere/20250101-1", "*", "~nouser", "x" * 300):
        with pytest.raises(UserError):
            find_run(tmp_path, text)


def test_the_environment_of_a_stage(finished: Path) -> None:
    script = (finished / "stages/train/job.sbatch").read_text()
    assert "export HF_HUB_OFFLINE=1" in script
    assert "\nLOCK=''\n" in script
    assert "/.cache/locks/prepare-" in (finished / "stages/prepare/job.sbatch").read_text()
