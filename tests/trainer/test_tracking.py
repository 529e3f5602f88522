"""Records: each step once, however often a run was interrupted."""

import json
from pathlib import Path

from hpcrl.config import compose
from hpcrl.config.seam import AttemptFolder, RunFolder
from hpcrl.stage import StageJob
from hpcrl.trainer.tracking import Tracking, read_metrics
from hpcrl.utils.stop import StopFlag


def job(folder: Path, attempt: int) -> StageJob:
    path = AttemptFolder(folder / "attempts" / str(attempt))
    path.path.mkdir(parents=True)
    return StageJob("train", RunFolder(folder), path, compose(["exp=tiny_grpo"]), StopFlag(path))


def test_steps_made_again_replace_their_lines(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    first = Tracking(job(tmp_path, 1), metrics, first_step=0, total_steps=4)
    for step in range(4):
        first.log(step, {"reward": float(step)})
    with open(metrics, "a") as file:
        file.write('{"step": 4, "rew')  # a kill in the middle of a line
    second = Tracking(job(tmp_path, 2), metrics, first_step=3, total_steps=4)
    second.log(3, {"reward": 33.0})
    lines = read_metrics(metrics)
    assert [(line["step"], line["attempt"], line["reward"]) for line in lines] == [
        (0, 1, 0.0),
        (1, 1, 1.0),
        (2, 1, 2.0),
        (3, 2, 33.0),
    ]


def test_wandb_is_offline_and_one_run_over_all_attempts(tmp_path: Path, monkeypatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for attempt in (1, 2):
        work = job(tmp_path, attempt)
        config = compose(["exp=tiny_grpo", "trainer.logger=[console,wandb]"])
        work.config = config
        tracking = Tracking(work, tmp_path / "metrics.jsonl", first_step=attempt, total_steps=2)
        tracking.log(attempt, {"critic/score/mean": 0.5})
        tracking.close()
    runs = [path.name for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert len(runs) == 2
    assert len({name.split("-", 3)[-1] for name in runs}) == 1
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]
