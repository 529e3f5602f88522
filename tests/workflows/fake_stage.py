"""A stage that trains nothing: it steps, saves, obeys the stop file, and misbehaves as the environment says.

The variable FAKE_<STAGE> holds options:

FAKE_PREPARE="steps=20 pause=0.1 exit=69 until=2 stubborn=1 orphan=1": the options are read by `_option` below.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hpcrl


def _option(stage: str, name: str, default: float) -> float:
    given = dict(part.split("=") for part in os.environ.get(f"FAKE_{stage.upper()}", "").split())
    return float(given.get(name, default))


def main() -> int:
    stage = sys.argv[1]
    run, attempt = (Path(text.partition("=")[2]) for text in sys.argv[2:4])
    out = run / "stages" / stage / "out"
    assert Path(hpcrl.__file__).is_relative_to(run / "code"), hpcrl.__file__
    assert "RAY_ADDRESS" not in os.environ
    if _option(stage, "stubborn", 0):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if _option(stage, "orphan", 0):
        subprocess.Popen(["setsid", "--fork", "sleep", "301"], stdin=subprocess.DEVNULL)
    saved = run / "stages" / stage / "saved"
    first = int(saved.read_text()) + 1 if saved.exists() else 1
    steps = int(_option(stage, "steps", 1))
    (attempt / "pid").write_text(str(os.getpid()))
    for step in range(first, steps + 1):
        sys.stderr.write(f"step {step} of {steps}\n")
        beat = {"phase": "fake", "step": step, "total_steps": steps, "time": time.time()}
        (attempt / "heartbeat").write_text(json.dumps(beat))
        time.sleep(_option(stage, "pause", 0.01))
        deadline = attempt / "deadline"
        late = deadline.exists() and float(deadline.read_text()) < time.time()
        if ((attempt / "stop").exists() or late) and not _option(stage, "stubborn", 0):
            record = {"code": 75, "kind": "stopped", "reason": "stopped by the fake"}
            (attempt / "exit.json").write_text(json.dumps(record))
            return 75
        fresh = saved.with_name("saved.tmp")
        fresh.write_text(str(step))
        fresh.replace(saved)
        if stage == "train":
            with (run / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "critic/score/mean": step / 10, "timing_s/step": 0.5}) + "\n")
    if int(attempt.name) <= _option(stage, "until", 0):
        code = int(_option(stage, "exit", 0))
        if code < 0:
            os.kill(os.getpid(), -code)
        return code
    with (run / "ran.txt").open("a") as file:
        file.write(f"{stage}\n")
    if not _option(stage, "nothing", 0):
        out.mkdir(parents=True, exist_ok=True)
        (out / "made.txt").write_text(f"{stage} made this\n")
    return 0


sys.exit(main())
