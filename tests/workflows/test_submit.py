"""Bad input ends with 78 before anything is on disk; what is refused is named."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcrl.config import ConfigError, UserError, compose, to_dict
from workflows import snapshot
from workflows.cli import guarded
from workflows.manifest import rooted
from workflows.run import dump_manifest
from workflows.stages import Stage
from workflows.submit import main, plan

ROOT = Path(__file__).resolve().parents[2]
TINY = "exp=tiny_grpo"
FETCH = "workflow.stages=[fetch,prepare,sft,train,evaluate]"


def _refusal(*arguments: str) -> str:
    with pytest.raises(UserError) as caught:
        plan(list(arguments))
    return str(caught.value)


@pytest.fixture(autouse=True)
def _own_run_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("RUN_ROOT", str(tmp_path / "runs"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "tiny_grpo"),
        (("exp=tiny_grp",), "tiny_grpo"),
        ((TINY, "trainer.total_epoch=1"), "total_epochs"),
        ((TINY, "algorithm.adv_estimator=grppo"), "grpo"),
        ((TINY, "data.train_files=/no/where.parquet"), "/no/where.parquet does not exist"),
        (
            (TINY, "actor_rollout_ref.rollout.multi_turn.tool_config_path=configs/tools/calculater.yaml"),
            "calculator.yaml",
        ),
        ((TINY, "custom_reward_function.path=/no/score.py"), "/no/score.py does not exist"),
        ((TINY, "trainer.experiment_name=a/b"), "trainer.experiment_name"),
        ((TINY, "run_root=/proc/1/runs"), "run_root"),
        ((TINY, "~actor_rollout_ref.model.tiny", "actor_rollout_ref.model.path=/no/model"), "/no/model does not exist"),
        (("manifest=/no/manifest.yaml",), "no manifest at /no/manifest.yaml"),
        (("manifest=" + "x" * 300,), "cannot be read as a manifest"),
        ((TINY, "run_root=~nouser/runs"), "no user nouser"),
        ((TINY, "data.train_files=~nouser/x.parquet"), "~nouser/x.parquet does not exist"),
        ((TINY, "custom_reward_function.path=" + "x" * 300), "does not exist"),
        ((TINY, "run_root=" + "/x" * 10 + "y" * 300), "run_root"),
        ((TINY, "actor_rollout_ref.rollout.multi_turn.tool_config_path=" + "x" * 300), "does not exist"),
        ((TINY, "trainer.nnodes=2"), "trainer.nnodes"),
        ((TINY, "~actor_rollout_ref.model.tiny", "actor_rollout_ref.model.path=package:nope.sub", FETCH), "no package"),
        ((TINY, "~actor_rollout_ref.model.tiny", "actor_rollout_ref.model.path=package:", FETCH), "no package"),
    ],
)
def test_what_cannot_work_is_refused_by_name(arguments: tuple[str, ...], said: str) -> None:
    assert said in _refusal(*arguments)


def test_a_parquet_file_without_a_column_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"promt": ["x"], "data_source": ["y"], "reward_model": ["z"]}), file)
    said = _refusal(TINY, f"data.train_files={file}")
    assert "no column 'prompt'" in said
    assert "promt" in said
    file.write_text("not parquet")
    assert "no parquet file" in _refusal(TINY, f"data.train_files={file}")


def test_tools_are_found_without_importing_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
    file = tmp_path / "tools.yaml"
    schema = (
        "tool_schema: {type: function, function: {name: t, description: d, parameters: {type: object, properties: {}}}}"
    )

    def said(class_name: str) -> str:
        file.write_text(f"tools: [{{class_name: {class_name}, {schema}}}]")
        return _refusal(TINY, f"{key}={file}")

    assert "no module hpcrl.tools.nowhere" in said("hpcrl.tools.nowhere.Tool")
    assert "StageJob" in said("hpcrl.stage.StageJub")
    (tmp_path / "broken_tool.py").write_text("class Tool(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "broken_tool.py is no Python" in said("broken_tool.Tool")
    assert "no dotted path" in said("..Tool")
    file.write_text("tool: []")
    assert "a list `tools:`" in _refusal(TINY, f"{key}={file}")
    file.write_text("tools: [{class_name: hpcrl.tools.calculator.CalculatorTool}]")
    assert "tool_schema" in _refusal(TINY, f"{key}={file}")


def test_a_source_file_without_a_prompt_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"promt": ["x"], "ground_truth": ["z"], "data_source": ["hpcrl/arithmetic"]}), file)
    said = _refusal(TINY, f"prepare.splits.train=[{{source: file, path: {file}}}]")
    assert "has no column 'prompt'" in said
    assert "columns.prompt" in said


def test_a_reward_function_must_be_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "score.py"
    file.write_text("def compute_scores(): ...\n")
    said = _refusal(TINY, f"custom_reward_function.path={file}")
    assert "compute_scores" in said
    file.write_text("def compute_score(:\n")
    assert "no Python" in _refusal(TINY, f"custom_reward_function.path={file}")


def test_the_command_ends_with_78_one_message_and_no_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workflows.submit", TINY, "seed=x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert done.stdout == ""
    assert "seed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_prints_the_scripts_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["submit", TINY, "--dry-run"])
    assert main() == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("COMMAND=")] == [
        f"COMMAND=(-m hpcrl.{stage})" for stage in ("prepare", "sft", "train", "evaluate")
    ]
    assert not (tmp_path / "runs").exists()


def test_errors_for_people_have_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> int:
        raise ConfigError(["seed: no"])

    with caplog.at_level(logging.ERROR):
        assert guarded(fail) == 78
    assert "seed: no" in caplog.text
    assert all(record.exc_info is None for record in caplog.records)


def _git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project ü"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg/tracked.py").write_text("1")
    (root / "gone.py").write_text("1")
    (root / ".gitignore").write_text("ignored.txt\nmyruns/\n")
    _git(root, "init", "-q")
    _git(root, "add", ".")
    _git(root, "commit", "-q", "-m", "first")
    (root / "gone.py").unlink()
    (root / "pkg/tracked.py").write_text("2")
    (root / "new file.py").write_text("3")
    (root / "ignored.txt").write_text("4")
    (root / "out").mkdir()
    (root / "out/result").write_text("5")
    return root


def test_the_snapshot_is_what_is_tracked_changed_or_new(project: Path, tmp_path: Path) -> None:
    names = snapshot.code_files(project, leave_out=project / "out")
    assert names == [".gitignore", "new file.py", "pkg/tracked.py"]
    snapshot.copy_code(project, names, tmp_path / "copy")
    assert (tmp_path / "copy/pkg/tracked.py").read_text() == "2"
    state = snapshot.git_state(project)
    assert state.untracked == ("new file.py", "out/result")
    assert b"-1" in state.diff
    assert b"+2" in state.diff


@pytest.mark.parametrize("key", ["password", "OPENAI_API_KEY", "apikey", "judge.access_token"])
def test_a_secret_is_refused_and_not_shown(tmp_path: Path, key: str) -> None:
    (tmp_path / "score.py").write_text("def compute_score(): ...\n")
    path = f"custom_reward_function.path={tmp_path / 'score.py'}"
    said = _refusal(TINY, path, f"+custom_reward_function.reward_kwargs.{key}=hunter2")
    assert "hunter2" not in said
    assert f"custom_reward_function.reward_kwargs.{key}: " in said
    assert "read it from the environment" in said
    plan([TINY, path, f"+custom_reward_function.reward_kwargs.{key}_name=JUDGE"])


def test_secrets_stay_out_of_the_snapshot_and_the_diff(project: Path) -> None:
    for name in (".env", "pkg/.env.local", "key.pem", ".netrc", "id_ed25519", "id_map.py"):
        (project / name).write_text("hush")
    _git(project, "add", ".env", "id_ed25519")
    assert snapshot.code_files(project, leave_out=project / "out") == sorted(
        [".gitignore", "id_map.py", "new file.py", "pkg/tracked.py"]
    )
    assert b"hush" not in snapshot.git_state(project).diff


def test_a_change_that_is_not_utf_8_is_kept_as_it_is(project: Path) -> None:
    (project / "pkg/tracked.py").write_bytes(b"# caf\xe9\n")
    state = snapshot.git_state(project)
    assert b"caf\xe9" in state.diff
    assert state.to_dict()["diff"] == "code.diff"


def test_a_project_that_git_ignores_is_walked(project: Path) -> None:
    inner = project / "myruns/copy"
    inner.mkdir(parents=True)
    (inner / "a.py").write_text("1")
    assert snapshot.code_files(inner) == ["a.py"]
    (inner / "runs").mkdir()
    (inner / "runs/b.py").write_text("1")
    (inner / "__pycache__").mkdir()
    (inner / "__pycache__/a.pyc").write_text("1")
    assert snapshot.snapshot_files(inner) == ["a.py", "runs/b.py"]


def test_a_manifest_whose_config_is_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.yaml").write_text("config: text\n")
    assert "no manifest" in _refusal(f"manifest={tmp_path / 'manifest.yaml'}")


def test_an_override_of_a_manifest_is_read_from_the_callers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = "configs/tools/calculator.yaml"
    for name in ("run/code/workflows/x.py", f"run/code/{tools}", f"here/{tools}", "here/score.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(
            (ROOT / tools).read_text() if name.endswith("yaml") else "def compute_score(): ..."
        )
    manifest = tmp_path / "run/manifest.yaml"
    manifest.write_text(dump_manifest({"config": to_dict(compose([TINY]))}))
    monkeypatch.chdir(tmp_path / "here")
    planned = plan([f"manifest={manifest}", "custom_reward_function.path=score.py"])
    assert planned.config.custom_reward_function.path == str(tmp_path / "here/score.py")
    assert planned.config.actor_rollout_ref.rollout.multi_turn.tool_config_path == tools  # of the run's own code
    assert planned.files == [tools, "workflows/x.py"]


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("./configs/tools/calculator.yaml", "configs/tools/calculator.yaml"),
        ("workflows/../configs/tools/calculator.yaml", "configs/tools/calculator.yaml"),
        ("configs/tools", "configs/tools"),
        (".venv", str(ROOT / ".venv")),
        ("owner/model", "owner/model"),
    ],
)
def test_paths_of_the_snapshot_stay_relative_to_it(written: str, kept: str) -> None:
    stage = Stage(name="s", command=(), inputs=("path",))
    assert rooted([stage], {"path": written}, ROOT, ROOT, snapshot.code_files(ROOT))["path"] == kept


def test_paths_are_read_from_the_folder_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    stage = Stage(name="s", command=(), inputs=("path",))
    assert rooted([stage], {"path": "rows.jsonl"}, tmp_path, ROOT, [])["path"] == str(tmp_path / "rows.jsonl")
    assert rooted([stage], {"path": "*.jsonl"}, tmp_path, ROOT, [])["path"] == str(tmp_path / "*.jsonl")
    assert rooted([stage], {"path": "rows.jsonl"}, tmp_path, ROOT, [], {"rows.jsonl"})["path"] == "rows.jsonl"
    below = ROOT / "configs"
    assert (
        rooted([stage], {"path": "config.yaml"}, below, ROOT, ["configs/config.yaml"])["path"] == "configs/config.yaml"
    )


def test_the_snapshot_works_without_git(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (project / "env").mkdir()
    (project / "env/pyvenv.cfg").touch()
    (project / "env/lib.py").touch()
    names = snapshot.code_files(project, leave_out=project / "out")
    assert names == [".gitignore", "ignored.txt", "new file.py", "pkg/tracked.py"]
    assert snapshot.git_state(project).commit is None


def test_a_large_file_is_refused_by_its_name(project: Path) -> None:
    with (project / "model.bin").open("wb") as file:
        file.truncate(snapshot.LARGEST + 1)
    with pytest.raises(UserError, match=r"model\.bin \(10 MB\)"):
        snapshot.code_files(project)
