"""Stages as data: what each runs, reads and makes, and what enters its fingerprint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from workflows.paths import looks_like_path, there, user_path

if TYPE_CHECKING:
    from hpcrl.config import Config

MODEL = "actor_rollout_ref.model"
TOOLS = "actor_rollout_ref.rollout.multi_turn"
MODEL_KEYS = (f"{MODEL}.path", f"{MODEL}.tokenizer_path", f"{MODEL}.tiny", f"{MODEL}.trust_remote_code")
TOOLS_KEYS = (f"{TOOLS}.enable", f"{TOOLS}.tool_config_path")
HUB_SOURCES = ("huggingface", "gsm8k", "math")
RANKS = ("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.device", "trainer.cpu_threads_per_rank")
COMMON_CODE = ("hpcrl/stage.py", "hpcrl/protocol.py", "hpcrl/utils/**", "hpcrl/models/**", "hpcrl/data/**")
TOOLS_CODE = ("hpcrl/tools/**", "hpcrl/config/tools.py")
SFT_CODE = (
    *("hpcrl/trainer/sft/**", "hpcrl/trainer/checkpoint.py", "hpcrl/trainer/metrics.py", "hpcrl/trainer/tracking.py"),
    *("hpcrl/trainer/progress.py", "hpcrl/trainer/ray_*.py"),
    *("hpcrl/trainer/ppo/ray_worker_group.py", "hpcrl/trainer/ppo/resource_pool.py"),
    *("hpcrl/trainer/ppo/core_algos/**", "hpcrl/workers/base.py", "hpcrl/workers/sft.py", "hpcrl/workers/engine/**"),
    "hpcrl/workers/rollout/agent_loop/metrics.py",
)
SAMPLING_CODE = (
    "hpcrl/config/rewards.py",
    *(*TOOLS_CODE, "hpcrl/interactions/**", "hpcrl/rewards/**", "hpcrl/workers/**", "hpcrl/trainer/**"),
)


@dataclass(frozen=True)
class Stage:
    """One stage of a run. Plain data: a manifest holds it, and a job finds it there."""

    name: str
    command: tuple[str, ...]
    """Arguments of the run's Python; `run_dir=… attempt_dir=…` are added."""
    parents: tuple[str, ...] = ()
    """Stages whose DONE releases this one and whose outputs it reads."""
    outputs: tuple[str, ...] = ()
    """What must stand in out/ when the command ends with 0."""
    code: tuple[str, ...] = ()
    """Globs of the code that makes the outputs. Most of hpcrl/config is left out: what it yields enters as config."""
    config: tuple[str, ...] = ()
    """Config keys, or sections, that the stage reads."""
    inputs: tuple[str, ...] = ()
    """Config keys whose values are files or folders that the stage reads, where they exist; `*` stands for any part."""
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parent to globs of its outputs that the stage reads; a parent without an entry is read whole."""
    packages: tuple[str, ...] = ()
    """Installed packages that make the outputs, with their versions; a `package:NAME` among the inputs is added."""
    state: tuple[str, ...] = ()
    """Paths in the run folder that one attempt leaves for the next, valid for one fingerprint."""
    progress: str | None = None
    """File in the run folder that holds the newest saved step."""
    shared: bool = False
    """Runs with the same fingerprint share the outputs, through the cache."""
    online: bool = False
    """May use the network; all other stages have the hub switched off. Prepare may where its sources are on the hub."""
    threads: int = 1
    """Threads of the numeric libraries in the stage's process."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """Nodes, GPUs, CPUs, memory and time of its job."""

    def to_dict(self) -> dict[str, Any]:
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return plain | {"reads": {parent: list(globs) for parent, globs in self.reads.items()}}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Stage:
        names = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in names}
        reads = {parent: tuple(globs) for parent, globs in (raw.get("reads") or {}).items()}
        return cls(**{**values, "reads": reads})


STAGES: tuple[Stage, ...] = (
    Stage(
        name="fetch",
        command=("-m", "hpcrl.fetch"),
        outputs=("model",),
        code=("hpcrl/fetch.py", *COMMON_CODE),
        config=MODEL_KEYS,
        inputs=(f"{MODEL}.path",),
        packages=("gguf", "transformers"),
        shared=True,
        online=True,
    ),
    Stage(
        name="prepare",
        command=("-m", "hpcrl.prepare"),
        parents=("fetch",),
        outputs=("dataset_card.json",),
        code=("hpcrl/prepare.py", "hpcrl/config/sources.py", "hpcrl/config/columns.py", *COMMON_CODE, *TOOLS_CODE),
        config=(
            *("seed", "prepare.splits", "prepare.rows_per_shard", *MODEL_KEYS, *TOOLS_KEYS),
            *("workflow.stages", "sft.max_length"),
            *("data.max_prompt_length", "data.filter_overlong_prompts", "data.truncation"),
            "data.apply_chat_template_kwargs",
        ),
        inputs=("prepare.splits.*.*.path", f"{TOOLS}.tool_config_path", f"{MODEL}.path", f"{MODEL}.tokenizer_path"),
        packages=("reasoning-gym", "tokenizers", "transformers"),
        shared=True,
    ),
    Stage(
        name="sft",
        command=("-m", "hpcrl.sft"),
        parents=("fetch", "prepare"),
        outputs=("model",),
        code=("hpcrl/sft.py", *COMMON_CODE, *TOOLS_CODE, *SFT_CODE),
        config=(
            *("seed", "sft", "data.apply_chat_template_kwargs", "data.truncation", *MODEL_KEYS, *TOOLS_KEYS),
            *RANKS,
        ),
        inputs=("sft.train_files", f"{TOOLS}.tool_config_path", f"{MODEL}.path", f"{MODEL}.tokenizer_path"),
        reads={"prepare": ("sft-*.parquet",)},
        packages=("torch", "transformers"),
        state=("stages/sft/checkpoints",),
        progress="stages/sft/checkpoints/latest_checkpointed_iteration.txt",
        shared=True,
    ),
    Stage(
        name="train",
        command=("-m", "hpcrl.train"),
        parents=("fetch", "prepare", "sft"),
        outputs=("model",),
        code=("hpcrl/train.py", *COMMON_CODE, *SAMPLING_CODE),
        config=(
            *("seed", "data", "algorithm", "actor_rollout_ref", "reward_model", "custom_reward_function"),
            "trainer",
        ),
        inputs=(
            *("data.train_files", "data.val_files", "custom_reward_function.path", f"{TOOLS}.tool_config_path"),
            *(f"{MODEL}.path", f"{MODEL}.tokenizer_path", "trainer.resume_from_path"),
        ),
        state=("checkpoints", "metrics.jsonl", "rollouts"),
        progress="checkpoints/latest_checkpointed_iteration.txt",
    ),
    Stage(
        name="evaluate",
        command=("-m", "hpcrl.evaluate"),
        parents=("fetch", "prepare", "sft", "train"),
        outputs=("eval.json",),
        code=("hpcrl/evaluate.py", *COMMON_CODE, *SAMPLING_CODE),
        config=(
            *("seed", "evaluate", "data", "actor_rollout_ref.model", "actor_rollout_ref.rollout"),
            *("reward_model", "custom_reward_function", *RANKS),
        ),
        inputs=(
            *("evaluate.files", "data.val_files", "custom_reward_function.path", f"{TOOLS}.tool_config_path"),
            *(f"{MODEL}.path", f"{MODEL}.tokenizer_path"),
        ),
    ),
)


def graph(config: Config, table: tuple[Stage, ...] = STAGES) -> list[Stage]:
    """The stages that the config names, in order, with their resources; parents that are not among them fall away."""
    known = {stage.name: stage for stage in table}
    names: list[str] = list(config.workflow.stages)
    return [_placed(known[name], names, config) for name in names]


def _placed(stage: Stage, names: list[str], config: Config) -> Stage:
    from hpcrl.config.workflow import ResourcesConfig  # jobs read stages from the manifest, without the schema

    resources = {str(k): v for k, v in config.workflow.resources.items()}.get(stage.name, ResourcesConfig())
    threads = resources.cpus_per_task
    if stage.name in ("sft", "train", "evaluate"):
        threads = config.trainer.cpu_threads_per_rank
    return replace(
        stage,
        parents=tuple(parent for parent in stage.parents if parent in names),
        threads=threads,
        online=stage.online or (stage.name == "prepare" and _reads_hub(config)),
        resources={f.name: getattr(resources, f.name) for f in fields(resources)},
    )


def _reads_hub(config: Config) -> bool:
    """Whether rows come from a hub data set, which may have to be downloaded."""
    sources = [source for split in config.prepare.splits.values() for source in split]
    hub = [s for s in sources if s.source in HUB_SOURCES and not s.options.get("offline")]
    return any(s.path is None or not (looks_like_path(s.path) or there(user_path(s.path))) for s in hub)


def closure(stages: list[Stage], name: str) -> list[str]:
    """The stage's ancestors, nearest last."""
    parents = {stage.name: stage.parents for stage in stages}
    found: list[str] = []

    def visit(child: str) -> None:
        for parent in parents[child]:
            if parent not in found:
                visit(parent)
                found.append(parent)

    visit(name)
    return found
