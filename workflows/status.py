"""States of all runs, or of one.

python -m workflows.status [RUN] [run_root=…] [--json]      RUN: a path, a run id, or an experiment for its latest
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcrl.config.seam import UserError
from workflows.cli import guarded, run_root_of
from workflows.records import read_view
from workflows.run import Run, all_runs, find_run
from workflows.state import RunState, StageState, run_state

logger = logging.getLogger("workflows.status")

WIDTH = 200
"""Columns where the output is no terminal."""
COLOURS = {
    "DONE": "green",
    "RUNNING": "cyan",
    "STOPPED": "yellow",
    "FAILED": "red",
    "WAITING": "dim",
    "UNKNOWN": "magenta",
}


def states(run_root: Path, which: str | None) -> list[RunState]:
    """States of the run that is named, or of all, newest last."""
    if which:
        return [run_state(read_view(find_run(run_root, which)))]
    found = []
    for path in all_runs(run_root):
        try:
            found.append(run_state(read_view(Run.open(path))))
        except UserError as error:
            logger.warning("%s", error)
    return found


def table(runs: list[RunState]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("run", "stage", "state", "attempt", "step", "reward", "ETA", "reason"):
        right = column in ("attempt", "step", "reward", "ETA")
        shown.add_column(
            column, justify="right" if right else "left", overflow="fold", no_wrap=column not in ("run", "reason")
        )
    for run in runs:
        for number, stage in enumerate(run.stages):
            shown.add_row(Text(run.run if number == 0 else ""), *_cells(stage))
        shown.add_section()
    return shown


def _cells(stage: StageState) -> list[Text]:
    steps = "" if stage.step is None else f"{stage.step}/{stage.total_steps}" if stage.total_steps else str(stage.step)
    said = stage.reason or (stage.phase or "")
    return [
        Text(stage.stage),
        Text(stage.state, style=COLOURS[stage.state]),
        Text("" if stage.attempt is None else str(stage.attempt)),
        Text(steps),
        Text("" if stage.reward is None else f"{stage.reward:.3f}"),
        Text(duration(stage.eta_seconds)),
        Text(said.splitlines()[0] if said else ""),
    ]


def duration(seconds: float | None) -> str:
    """1:02:03, 2:03; nothing for None."""
    if seconds is None:
        return ""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def main() -> int:
    run_root, rest = run_root_of(sys.argv[1:])
    parser = argparse.ArgumentParser(
        prog="python -m workflows.status", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="a path, a run id, or an experiment for its latest")
    parser.add_argument("--json", action="store_true", help="for programs")
    given = parser.parse_args(rest)
    found = states(run_root, given.run)
    if given.json:
        sys.stdout.write(json.dumps([state.to_dict() for state in found], indent=2) + "\n")
    elif found:
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
        console.print(table(found))
        if given.run:
            console.print(Text(found[0].path, style="dim"), soft_wrap=True)
    else:
        logger.info("no runs under %s yet", run_root)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
