"""What enters a stage's fingerprint, and what does not."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from hpcrl.config.seam import RunFolder, UserError
from workflows.completion import Marker, damage, describe_outputs, read_marker, write_marker
from workflows.fingerprint import difference, fingerprint, installed_version, values_at
from workflows.hashing import ContentHashes
from workflows.stages import Stage

STAGE = Stage(
    name="child",
    command=("-m", "x"),
    parents=("parent",),
    code=("pkg/**", "one.py"),
    config=("seed", "data.rows"),
    inputs=("files", "splits.*.*.path"),
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    for name in ("pkg/deep/a.py", "one.py", "other.py", "pkg/data.bin"):
        file = folder.code / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    _finish_parent(folder, "rows")
    (tmp_path / "input.txt").write_text("input")
    return folder


def _finish_parent(folder: RunFolder, text: str) -> None:
    parent = folder.stage("parent")
    parent.out.mkdir(parents=True, exist_ok=True)
    (parent.out / "rows").write_text(text)
    outputs = describe_outputs(parent.out, ContentHashes(folder.path / "hashes"))
    write_marker(parent.done, Marker("parent", "f", outputs))


def _config(run: RunFolder, **more: Any) -> dict[str, Any]:
    config = {"seed": 1, "data": {"rows": 2, "other": 3}, "files": [str(run.path.parent / "input.txt")]}
    return config | more


def _digest(run: RunFolder, **more: Any) -> str:
    return fingerprint(run, STAGE, _config(run, **more), ContentHashes(run.path / "hashes")).digest


def test_what_is_declared_enters_and_nothing_else(run: RunFolder) -> None:
    first = _digest(run)
    (run.code / "other.py").write_text("changed")
    (run.code / "pkg/data.bin").write_text("changed")
    assert _digest(run) == first
    assert _digest(run, data={"rows": 2, "other": 4}) == first
    assert _digest(run, seed=2) != first
    (run.code / "pkg/deep/a.py").write_text("changed")
    second = _digest(run)
    assert second != first
    (run.path.parent / "input.txt").write_text("INPUT")
    third = _digest(run)
    assert third not in (first, second)
    _finish_parent(run, "ROWS")
    assert _digest(run) not in (first, second, third)


def test_an_unfinished_parent_is_an_error(run: RunFolder) -> None:
    (run.stage("parent").out / "rows").unlink()
    with pytest.raises(UserError, match="child waits for parent"):
        _digest(run)


def test_of_a_parent_only_what_is_read_enters(run: RunFolder) -> None:
    stage = replace(STAGE, reads={"parent": ("sft-*",)})
    hashes = ContentHashes(run.path / "hashes")
    (run.stage("parent").out / "sft-0").write_text("demonstrations")
    _finish_parent(run, "rows")
    first = fingerprint(run, stage, _config(run), hashes).digest
    _finish_parent(run, "other rows")
    assert fingerprint(run, stage, _config(run), hashes).digest == first
    (run.stage("parent").out / "sft-0").write_text("other demonstrations")
    _finish_parent(run, "other rows")
    assert fingerprint(run, stage, _config(run), hashes).digest != first


def test_versions_of_packages_enter(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = replace(STAGE, packages=("pyyaml",), inputs=("model",))
    hashes = ContentHashes(run.path / "hashes")
    config = _config(run, model="package:pyarrow")
    first = fingerprint(run, stage, config, hashes)
    assert first.ingredients["packages"] == {name: version(name) for name in ("pyyaml", "pyarrow")}
    monkeypatch.setattr("workflows.fingerprint.version", lambda name: "0.0.1")
    second = fingerprint(run, stage, config, hashes)
    assert second.digest != first.digest
    assert f"pyyaml: {version('pyyaml')} -> 0.0.1" in difference(first.ingredients, second.ingredients)
    monkeypatch.undo()
    assert installed_version("yaml") == f"PyYAML {version('pyyaml')}"
    assert installed_version("nowhere") is None


def test_the_files_of_a_pattern_enter(run: RunFolder) -> None:
    (run.path.parent / "a.jsonl").write_text("a")
    config = _config(run, files=str(run.path.parent / "*.jsonl"))
    hashes = ContentHashes(run.path / "hashes")
    first = fingerprint(run, STAGE, config, hashes).digest
    (run.path.parent / "b.jsonl").write_text("b")
    assert fingerprint(run, STAGE, config, hashes).digest != first


def test_the_difference_names_what_changed(run: RunFolder) -> None:
    hashes = ContentHashes(run.path / "hashes")
    old = fingerprint(run, STAGE, _config(run), hashes).ingredients
    (run.code / "one.py").write_text("changed")
    _finish_parent(run, "ROWS")
    new = fingerprint(run, STAGE, _config(run, seed=5), hashes).ingredients
    said = difference(old, new)
    assert said == "code changed (one.py); config changed (seed: 1 -> 5); inputs changed (parent/out/rows)"


def test_values_at_a_pattern() -> None:
    config = {"splits": {"a": [{"path": "x"}, {"path": None}], "b": [{"path": "y"}, {}]}, "files": ["p", "q"]}
    assert list(values_at(config, "splits.*.*.path")) == ["x", None, "y"]
    assert list(values_at(config, "files")) == ["p", "q"]
    assert list(values_at(config, "absent.key")) == []


def test_a_large_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import workflows.hashing as hashing

    reads = []
    real = hashing._sha256
    monkeypatch.setattr(hashing, "_sha256", lambda path: reads.append(path) or real(path))
    file = tmp_path / "model.bin"
    file.write_bytes(b"a" * (hashing.SMALL + 1))
    old = time.time() - 60
    os.utime(file, (old, old))
    hashes = ContentHashes(tmp_path / "hashes")
    first = hashes.file(file)
    assert hashes.file(file) == first
    assert len(reads) == 1
    file.write_bytes(b"b" * (hashing.SMALL + 1))
    assert hashes.file(file) != first
    file.write_bytes(b"c" * (hashing.SMALL + 1))  # within the clock's tick: a young file is not remembered
    assert hashes.file(file) == real(file)


def test_damage_names_the_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_text("one")
    hashes = ContentHashes(tmp_path / "hashes")
    marker = Marker("s", "f", describe_outputs(out, hashes))
    assert damage(marker, out, hashes) is None
    (out / "a").write_text("two")
    assert damage(marker, out, None) is None
    assert damage(marker, out, hashes) == "out/a has other content than when it was finished"
    (out / "a").write_text("three")
    assert damage(marker, out, None) == "out/a has 5 bytes, not 3"
    (out / "a").unlink()
    assert damage(marker, out, None) == "out/a is missing"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stage": 1}', "\xff"])
def test_a_broken_marker_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "DONE").write_text(text, encoding="latin-1")
    assert read_marker(tmp_path / "DONE") is None
