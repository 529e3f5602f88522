"""Make a run from an experiment and overrides, and run it.

python -m workflows.submit exp=NAME [key=value …] [--dry-run] [--detach]
python -m workflows.submit manifest=FILE [key=value …]      run again what a manifest describes

The last line on stdout is the run folder. Progress is on stderr. The exit code is the run's: 0, or as a stage's.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.config import Config, compose, experiments, from_dict, to_dict
from hpcrl.config.seam import RunFolder, UserError, write_text
from workflows import stages as stage_table
from workflows.cache import Cache
from workflows.cli import guarded
from workflows.drive import drive_run
from workflows.fingerprint import static_key, values_at
from workflows.manifest import build_manifest, describe_inputs, rooted
from workflows.paths import root_path, user_path
from workflows.preflight import preflight
from workflows.processes import end_with_parent
from workflows.render import JobScript
from workflows.run import Run, dump_manifest, new_run_folder, point_latest, read_manifest
from workflows.snapshot import DIFF, PROJECT_ROOT, code_files, code_hash, copy_code, git_state, snapshot_files

logger = logging.getLogger("workflows.submit")


@dataclass(frozen=True)
class Plan:
    """A run before anything of it is on disk."""

    config: Config
    stages: list[stage_table.Stage]
    code: Path
    """Folder that the code snapshot is taken from."""
    files: list[str]
    """The snapshot's files, relative to `code`."""
    arguments: list[str]
    source: Path | None = None
    """The manifest whose own code is taken, and with it what is known of its repository."""

    @property
    def run_root(self) -> Path:
        return root_path(self.config.run_root)

    @property
    def experiment(self) -> str:
        return self.config.trainer.experiment_name


def plan(arguments: list[str]) -> Plan:
    """Compose and check. Raises UserError with every problem found."""
    if not arguments:
        raise UserError(f"say which experiment: `make submit EXP=…`; there are {', '.join(experiments()) or 'none'}")
    given = [text for text in arguments if text.startswith("manifest=")]
    overrides = [text for text in arguments if not text.startswith("manifest=")]
    code, source, settled = PROJECT_ROOT, None, set[str]()
    if given:
        file = user_path(given[-1].partition("=")[2])
        manifest = read_manifest(file)
        config = compose(overrides, base=manifest["config"])
        code = _code_beside(file, manifest)
        source = file if code != PROJECT_ROOT else None
        known = {pattern for stage in stage_table.STAGES for pattern in stage.inputs}
        settled = {v for pattern in known for v in values_at(manifest["config"], pattern) if isinstance(v, str)}
    else:
        config = compose(overrides)
    root = root_path(config.run_root)
    files = snapshot_files(code) if source else code_files(code, leave_out=root)
    stages = stage_table.graph(config, stage_table.STAGES)
    config = from_dict(rooted(stages, to_dict(config), Path.cwd(), code, files, settled))
    preflight(config, code)
    return Plan(config, stages, code, files, arguments, source)


def _code_beside(source: Path, manifest: dict[str, Any]) -> Path:
    """The code that the manifest's own run had, where it stands beside it; else the project as it is now."""
    own = source.absolute().parent / "code"
    if (own / "workflows").is_dir():
        logger.info("running again with the code of that run: %s", own)
        return own
    if manifest.get("code") != code_hash(PROJECT_ROOT, code_files(PROJECT_ROOT)):
        commit = (manifest.get("git") or {}).get("commit") or "an unknown commit"
        logger.warning("the code of that run (%s) is not beside its manifest; using the project as it is now", commit)
    return PROJECT_ROOT


def scripts(plan: Plan, folder: Path, config: dict[str, Any], code: Path, token: str) -> dict[str, str]:
    """Stage name to its job script."""
    cache = Cache(plan.run_root)
    return {
        stage.name: JobScript(
            stage=stage,
            run=folder,
            token=token,
            scheduler=plan.config.cluster.scheduler,
            lock=cache.lock_file(stage.name, static_key(code, stage, config)) if stage.shared else None,
        ).render()
        for stage in plan.stages
    }


def make_run(plan: Plan) -> Run:
    """Write the run folder: code, manifest, job scripts; `latest` points to it last."""
    folder = new_run_folder(plan.run_root, plan.experiment)
    try:
        return _fill(plan, folder)
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _fill(plan: Plan, folder: RunFolder) -> Run:
    config = to_dict(plan.config)
    copy_code(plan.code, plan.files, folder.code)
    git, diff = _git_of(plan)
    if diff:
        (folder.path / DIFF).write_bytes(diff)
    manifest = build_manifest(
        experiment=plan.experiment,
        run_id=folder.path.name,
        config=config,
        stages=plan.stages,
        git=git,
        code_hash=code_hash(plan.code, plan.files),
        inputs=describe_inputs(plan.stages, config, folder.code, Cache(plan.run_root).hashes),
        arguments=plan.arguments,
    )
    run = Run(folder, manifest)
    for name, text in scripts(plan, folder.path, config, folder.code, run.token).items():
        script = folder.stage(name).job_script
        write_text(script, text)
        script.chmod(0o755)
    write_text(folder.manifest, dump_manifest(manifest))
    point_latest(folder)
    return run


def _git_of(plan: Plan) -> tuple[dict[str, Any], bytes]:
    """What the manifest says of the repository, and the changes: those of the run that the code comes from."""
    if plan.source is None:
        state = git_state(plan.code)
        return state.to_dict(), state.diff
    recorded = read_manifest(plan.source).get("git")
    diff = plan.source.parent / DIFF
    return dict(recorded) if isinstance(recorded, dict) else {}, diff.read_bytes() if diff.is_file() else b""


def show(plan: Plan) -> None:
    """Print what would be submitted."""
    folder = plan.run_root / plan.experiment / "RUN_ID"
    for name, text in scripts(plan, folder, to_dict(plan.config), plan.code, "TOKEN").items():
        sys.stdout.write(f"# ---- {folder}/stages/{name}/job.sbatch\n{text}\n")
    for stage in plan.stages:
        after = f" after {', '.join(stage.parents)}" if stage.parents else ""
        logger.info("%s%s: %s", stage.name, after, " ".join(("python", *stage.command)))
    logger.info("dry run: nothing was written; %d files of code would be taken from %s", len(plan.files), plan.code)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workflows.submit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arguments", nargs="*", metavar="key=value", help="exp=NAME or manifest=FILE, and overrides")
    parser.add_argument("--dry-run", action="store_true", help="check, print the job scripts, and write nothing")
    parser.add_argument("--detach", action="store_true", help="run in the background")
    parser.add_argument("--end-with-parent", action="store_true", help="stop in order when the caller dies (make)")
    given = parser.parse_intermixed_args()
    if given.end_with_parent and not given.detach:
        end_with_parent()
    planned = plan(given.arguments)
    if given.dry_run:
        show(planned)
        return 0
    run = make_run(planned)
    return drive_run(run, given.detach)


if __name__ == "__main__":
    sys.exit(guarded(main))
