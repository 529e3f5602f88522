"""Ray's settings as environment variables, which Ray reads when it is imported: apply them before that."""

from __future__ import annotations

import os
import secrets

SETTINGS = {
    "RAY_AUTH_MODE": "token",  # of our own, known to our processes alone; nothing is written to the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_worker_niceness": "0",  # ranks are the job's real work, not a background of it
}


def apply_ray_settings() -> None:
    """Set what the environment does not say otherwise; a Ray that the job brought up is left as it is."""
    if os.environ.get("RAY_ADDRESS"):
        return
    for name, value in (SETTINGS | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}).items():
        os.environ.setdefault(name, value)
