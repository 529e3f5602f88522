"""Checkpoints: whole or not there, verified, kept by what is on disk."""

from pathlib import Path

import pytest

from hpcrl.config import UserError
from hpcrl.trainer.checkpoint import POINTER, CheckpointStore


def write(text: str):
    def into(folder: Path) -> None:
        (folder / "actor").mkdir()
        (folder / "actor" / "weights").write_text(text)

    return into


def test_the_newest_is_found_with_its_state(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    assert store.newest() is None
    store.save(2, {"loader": {"position": 4}}, write("two"))
    store.save(10, {"loader": {"position": 8}}, write("ten"))
    newest = store.newest()
    assert newest is not None and newest.step == 10
    assert newest.trainer_state["loader"] == {"position": 8}
    assert (newest.path / "actor" / "weights").read_text() == "ten"
    assert (tmp_path / "c" / POINTER).read_text() == "10"


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {}, write("one"))

    def fails(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        store.save(2, {}, fails)
    assert store.steps() == [1]
    store.save(2, {}, write("two"))
    assert sorted(path.name for path in (tmp_path / "global_step_2").iterdir()) == [
        "actor",
        "contents.json",
        "trainer.json",
    ]


@pytest.mark.parametrize("damage", ["cut", "gone", "changed", "no contents"])
def test_a_damaged_one_is_set_aside_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {}, write("one"))
    store.save(2, {}, write("two"))
    weights = tmp_path / "global_step_2" / "actor" / "weights"
    if damage == "cut":
        weights.write_text("tw")
    elif damage == "gone":
        weights.unlink()
    elif damage == "changed":
        weights.write_text("TWO")
    else:
        (tmp_path / "global_step_2" / "contents.json").unlink()
    newest = store.newest()
    assert newest is not None and newest.step == 1
    assert store.steps() == [1]
    assert len(list(tmp_path.glob("damaged_global_step_2_*"))) == 1


def test_retention_is_read_from_disk(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        CheckpointStore(tmp_path, keep=2).save(step, {}, write(str(step)))
    assert CheckpointStore(tmp_path).steps() == [2, 3]


def test_a_path_that_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not complete"):
        CheckpointStore(tmp_path).open(tmp_path / "global_step_5")
