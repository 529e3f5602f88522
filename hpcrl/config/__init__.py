"""The one schema of every option, with its checks; imports no torch and touches no hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcrl.config.arithmetic import batch_arithmetic
from hpcrl.config.checks import check
from hpcrl.config.convert import from_dict, to_dict
from hpcrl.config.messages import ConfigError
from hpcrl.config.schema import Config
from hpcrl.config.seam import (
    AttemptFolder,
    ExitCode,
    HpcrlError,
    InfrastructureError,
    NoSpaceError,
    RunFolder,
    StageFolder,
    StopRequested,
    UserError,
)
from hpcrl.utils.lazy import lazy_exports

if TYPE_CHECKING:
    from hpcrl.config.composition import compose, experiments

# Composing needs Hydra, which a stage that reads its manifest does not.
__getattr__ = lazy_exports(
    __name__, {"compose": "hpcrl.config.composition", "experiments": "hpcrl.config.composition"}
)[0]

__all__ = [
    "AttemptFolder",
    "Config",
    "ConfigError",
    "ExitCode",
    "HpcrlError",
    "InfrastructureError",
    "NoSpaceError",
    "RunFolder",
    "StageFolder",
    "StopRequested",
    "UserError",
    "batch_arithmetic",
    "check",
    "compose",
    "experiments",
    "from_dict",
    "to_dict",
]
