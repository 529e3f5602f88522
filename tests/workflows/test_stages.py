"""The stages as data: the globs cover the code that a stage imports, the keys exist, the graph is right."""

from __future__ import annotations

import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from hpcrl.config import Config, from_dict, to_dict
from workflows.fingerprint import code_matching, lookup
from workflows.render import stage_environment
from workflows.stages import STAGES, Stage, graph

ROOT = Path(__file__).resolve().parents[2]


def _file(module: str) -> Path | None:
    base = ROOT / Path(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _imports(path: Path) -> set[str]:
    """Names of hpcrl modules that a file imports, at the top or within functions, and those it names in strings.

    The config names modules as data, and loads none.
    """
    found = set()
    strings = "hpcrl/config" not in str(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif strings and isinstance(node, ast.Constant) and str(node.value).startswith("hpcrl."):
            found.add(str(node.value))
    return {name for name in found if name.startswith("hpcrl.")}


def _closure(module: str) -> set[Path]:
    seen: set[Path] = set()
    frontier = {module}
    while frontier:
        path = _file(frontier.pop())
        if path is not None and path not in seen:
            seen.add(path)
            frontier |= _imports(path)
    return seen


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_the_code_globs_cover_what_the_stage_imports(stage: Stage) -> None:
    used = {str(path.relative_to(ROOT)) for path in _closure(stage.command[-1])}
    assert used, stage.command
    free = {name for name in used if name.startswith("hpcrl/config/") or name == "hpcrl/__init__.py"}
    covered = {str(file.relative_to(ROOT)) for pattern in stage.code for file in code_matching(ROOT, pattern)}
    assert not used - free - covered


FOREIGN = ("hpcrl/rewards/*", "hpcrl/interactions/*", "hpcrl/workers/reward_manager/*", "hpcrl/workers/rollout/hf*.py")
RL = tuple(f"hpcrl/trainer/{name}.py" for name in ("ppo/ray_trainer", "ppo/step", "ppo/reward", "evaluate"))


@pytest.mark.parametrize("stage", STAGES[:3], ids=lambda stage: stage.name)
def test_the_code_of_rl_that_the_warm_start_does_not_import_is_not_in_its_globs(stage: Stage) -> None:
    used = {str(path.relative_to(ROOT)) for path in _closure(stage.command[-1])}
    covered = {str(file.relative_to(ROOT)) for pattern in stage.code for file in code_matching(ROOT, pattern)}
    foreign = {name for name in covered if any(fnmatch(name, pattern) for pattern in (*FOREIGN, *RL))}
    assert foreign <= used


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_the_config_keys_exist(stage: Stage) -> None:
    config = to_dict(Config())
    for key in [*stage.config, *(key for key in stage.inputs if "*" not in key)]:
        parent, _, last = key.rpartition(".")
        holder = lookup(config, parent) if parent else config
        assert last in holder, key


def test_the_graph_holds_the_stages_of_the_config_with_their_parents() -> None:
    config = from_dict(
        {
            "workflow": {"stages": ["prepare", "train"], "resources": {"train": {"nodes": 2, "cpus_per_task": 7}}},
            "trainer": {"cpu_threads_per_rank": 3},
        }
    )
    prepare, train = graph(config)
    assert (prepare.parents, train.parents) == ((), ("prepare",))
    assert train.resources["nodes"] == 2
    assert (prepare.threads, train.threads) == (2, 3)


@pytest.mark.parametrize(
    ("source", "online"),
    [
        ({"source": "gsm8k"}, True),
        ({"source": "huggingface", "path": "owner/rows"}, True),
        ({"source": "gsm8k", "path": "./rows"}, False),
        ({"source": "gsm8k", "options": {"offline": True}}, False),
        ({"source": "arithmetic", "rows": 1}, False),
    ],
)
def test_prepare_is_online_only_where_a_source_is_on_the_hub(source: dict[str, Any], online: bool) -> None:
    config = from_dict({"workflow": {"stages": ["prepare", "train"]}, "prepare": {"splits": {"train": [source]}}})
    prepare, train = graph(config)
    assert (prepare.online, train.online) == (online, False)
    assert ("HF_HUB_OFFLINE" in stage_environment(prepare)) != online


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_survives_the_manifest(stage: Stage) -> None:
    assert Stage.from_dict(stage.to_dict()) == stage


def test_no_module_of_workflows_imports_the_heavy_ones() -> None:
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in (ROOT / "workflows").rglob("*.py")]
    heavy = "{'torch', 'ray', 'transformers', 'polars', 'wandb'}"
    code = f"import sys\nfor n in {names!r}: __import__(n.removesuffix('.__init__'))\nprint({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"
