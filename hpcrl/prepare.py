"""The prepare stage: `python -m hpcrl.prepare run_dir=… attempt_dir=…`."""

from __future__ import annotations

import time
from functools import partial

from hpcrl.stage import StageJob, stage_main

HEARTBEAT_SECONDS = 5.0


def run(job: StageJob) -> None:
    """Sources to parquet shards with a dataset card, in the stage's out folder."""
    from hpcrl.data.pipeline import Preparation
    from hpcrl.data.tool_schemas import tool_schemas
    from hpcrl.utils.run import load_run_tokenizer

    beaten = time.monotonic()

    def check() -> None:
        nonlocal beaten
        job.stop.check()
        if time.monotonic() - beaten >= HEARTBEAT_SECONDS:
            beaten = time.monotonic()
            job.heartbeat("prepare")

    Preparation(
        config=job.config,
        out=job.out,
        load_tokenizer=partial(load_run_tokenizer, job.folder, job.config),
        log_folder=job.attempt.path / "workers",
        tools=tool_schemas(job.config),
        check=check,
        progress=lambda done, total: job.heartbeat("prepare", done, total),
    ).run()


if __name__ == "__main__":
    stage_main("prepare", run)
