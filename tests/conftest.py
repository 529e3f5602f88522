"""Settings for all tests: no network, no surprises from the surroundings."""

from __future__ import annotations

import os

for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ[name] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["WANDB_MODE"] = "offline"
# What `make test` hands on is for its own recipe, not for the commands that tests run.
for name in ("RUN_ROOT", "EXP", "RUN", "STAGE", "TORCH_INDEX", "CONSTRAINTS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
    os.environ.pop(name, None)
