"""The one schema of every option, with its checks; imports no torch and touches no hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcrl.utils.lazy import lazy_exports

if TYPE_CHECKING:
    from hpcrl.config.arithmetic import batch_arithmetic
    from hpcrl.config.checks import check
    from hpcrl.config.composition import compose, experiments
    from hpcrl.config.convert import as_config, from_dict, to_dict
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
    from hpcrl.config.tools import read_tool_config

# A job script's helpers need the seam alone, a stage that reads its manifest needs no Hydra.
_SEAM = (
    *("AttemptFolder", "ExitCode", "HpcrlError", "InfrastructureError", "NoSpaceError", "RunFolder", "StageFolder"),
    *("StopRequested", "UserError"),
)
__getattr__ = lazy_exports(
    __name__,
    {
        "as_config": "hpcrl.config.convert",
        "batch_arithmetic": "hpcrl.config.arithmetic",
        "read_tool_config": "hpcrl.config.tools",
        "check": "hpcrl.config.checks",
        "compose": "hpcrl.config.composition",
        "experiments": "hpcrl.config.composition",
        "from_dict": "hpcrl.config.convert",
        "to_dict": "hpcrl.config.convert",
        "ConfigError": "hpcrl.config.messages",
        "Config": "hpcrl.config.schema",
    }
    | dict.fromkeys(_SEAM, "hpcrl.config.seam"),
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
    "as_config",
    "batch_arithmetic",
    "check",
    "compose",
    "experiments",
    "from_dict",
    "read_tool_config",
    "to_dict",
]
