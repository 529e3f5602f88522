from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from hpcrl.config import Config, ConfigError, compose, experiments, from_dict, to_dict
from hpcrl.config.aliases import GLOBAL_COUNTS, RENAMED_KEYS, RENAMED_VALUES
from hpcrl.config.keys import all_keys, allowed_values, annotation_at, bare, field_docs, fields_of, is_section
from hpcrl.config.refusals import REFUSED_KEYS, REFUSED_VALUES
from hpcrl.config.sources import SOURCE_OPTIONS

EXPERIMENT = """\
# @package _global_
data: {train_files: [/data/train.parquet], val_files: [/data/test.parquet], train_batch_size: 16}
trainer: {n_gpus_per_node: 2}
actor_rollout_ref:
  model: {path: /some/model}
  rollout: {n: 8}
  actor: {ppo_mini_batch_size: 16, ppo_micro_batch_size_per_gpu: 8}
"""
ACTOR = "actor_rollout_ref.actor"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config folder with one working experiment, `small`."""
    monkeypatch.delenv("RUN_ROOT", raising=False)
    (tmp_path / "exp").mkdir()
    (tmp_path / "config.yaml").write_text("defaults:\n  - _self_\n  - exp: null\n")
    (tmp_path / "exp" / "small.yaml").write_text(EXPERIMENT)
    return tmp_path


def small(folder: Path, *overrides: str) -> Config:
    """The experiment with overrides; as a base, which spares Hydra's part of the work."""
    return compose(overrides, base=yaml.safe_load(EXPERIMENT), config_dir=folder)


def refused(folder: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        small(folder, *overrides)
    assert caught.value.exit_code == 78
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def test_experiment_and_defaults(folder: Path) -> None:
    config = compose(["exp=small"], config_dir=folder)
    assert (config.trainer.n_gpus_per_node, config.actor_rollout_ref.rollout.n) == (2, 8)
    assert config.trainer.experiment_name == "small"
    assert config.run_root == "runs"
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize("form", ["", "+", "++"])
def test_override_of_keys_in_the_yaml_and_of_keys_that_are_not(folder: Path, form: str) -> None:
    config = small(folder, f"{form}actor_rollout_ref.rollout.n=4", f"{form}seed=3")
    assert (config.actor_rollout_ref.rollout.n, config.seed) == (4, 3)


def test_delete_goes_back_to_the_default(folder: Path) -> None:
    config = small(folder, "~trainer.n_gpus_per_node", "~trainer.nnodes", "seed=4", "~seed")
    assert (config.trainer.n_gpus_per_node, config.trainer.nnodes, config.seed) == (8, 1, 0)
    (problem,) = refused(folder, "~trainer.nothing")
    assert "~trainer.nothing: unknown key" in problem


@pytest.mark.parametrize(
    "value",
    ["/a b/é", "it's", "x(1)", "a,b", "[x", "{y}", "c:\\d\\", "\\'", "a=b", "é'(, \"", "007", "1e5", "true", "$HOME/x"],
)
def test_text_is_taken_as_it_is_typed(folder: Path, value: str) -> None:
    assert small(folder, f"run_root={value}").run_root == value
    assert small(folder, f"data.train_files={value}").data.train_files == [value] or value.startswith("[")


def test_text_in_an_option_without_a_schema(folder: Path) -> None:
    config = small(folder, "custom_reward_function.path=x.py", "custom_reward_function.reward_kwargs.word=it's (é)")
    assert config.custom_reward_function.reward_kwargs == {"word": "it's (é)"}


def test_quotes_null_lists_and_mappings_are_hydras(folder: Path) -> None:
    config = small(folder, "run_root='a b'", "data.val_files=[x,'y z']", "trainer.total_training_steps=null")
    assert (config.run_root, config.data.val_files) == ("a b", ["x", "y z"])
    assert (
        small(folder, "workflow.resources={train: {cpus_per_task: 4}}").workflow.resources["train"].cpus_per_task == 4
    )
    assert small(folder, "workflow.resources.train.time=01:00:00").workflow.resources["train"].time == "01:00:00"


def test_element_of_a_list(folder: Path) -> None:
    stages = "workflow.stages=[prepare,train,evaluate]"
    sources = "prepare.splits={train: [{source: arithmetic, rows: 9}], test: [{source: arithmetic, rows: 9}]}"
    config = small(folder, stages, sources, "prepare.splits.train.0.rows=5")
    assert config.prepare.splits["train"][0].rows == 5


def test_run_root_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_ROOT", "/scratch/é x")
    assert small(folder).run_root == "/scratch/é x"
    assert small(folder, "run_root=here").run_root == "here"


def test_experiment_name_may_be_given(folder: Path) -> None:
    config = compose(["exp=small", "trainer.experiment_name=mine", "+seed=1"], config_dir=folder)
    assert (config.trainer.experiment_name, config.seed) == ("mine", 1)


def test_base_config_takes_overrides(folder: Path) -> None:
    base = to_dict(small(folder))
    assert compose(["seed=9"], base=base, config_dir=folder).seed == 9
    with pytest.raises(ConfigError, match="exp: cannot be chosen on top of a given config"):
        compose(["exp=small"], base=base, config_dir=folder)


def test_to_dict_and_back_through_yaml(folder: Path) -> None:
    config = small(folder)
    assert from_dict(yaml.safe_load(yaml.safe_dump(to_dict(config)))) == config


def test_number_that_yaml_reads_as_text() -> None:
    raw = yaml.safe_load("actor_rollout_ref: {actor: {optim: {lr: 1e-6}}}")
    assert isinstance(raw["actor_rollout_ref"]["actor"]["optim"]["lr"], str)
    assert from_dict(raw).actor_rollout_ref.actor.optim.lr == 1e-6


def test_unknown_experiment_names_the_known(folder: Path) -> None:
    with pytest.raises(ConfigError, match="exp=smal: unknown experiment; known: small; nearest: small"):
        compose(["exp=smal"], config_dir=folder)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.total_epoch=3", "trainer.total_epoch: unknown key (given 3); nearest: trainer.total_epochs"),
        ("trainer.weight_decay=3", "actor_rollout_ref.actor.optim.weight_decay"),
        ("rollout.n=3", "rollout: unknown key; nearest: actor_rollout_ref.rollout"),
        ("zzz=3", "zzz: unknown key; the top level has seed, run_root, workflow"),
        ("seed=x", "seed: 'x' is not allowed; it must be a whole number"),
        ("seed=1.5", "seed: 1.5 is not allowed; it must be a whole number"),
        ("trainer.balance_batch=maybe", "trainer.balance_batch: 'maybe' is not allowed; it must be true or false"),
        ("trainer.nnodes=0", "trainer.nnodes: 0 is not allowed; it must be greater than 0"),
        ("trainer.logger=console,wandb", "it must be a list of one of console, wandb, written [a, b]"),
        ("trainer.logger=[wanbd]", "trainer.logger.0: 'wanbd' is not allowed; allowed: console, wandb; nearest: wandb"),
        ("trainer.resume_mode=atuo", "allowed: auto, disable, resume_path; nearest: auto"),
        ("data=3", "data: 3 is not allowed; it must be a section with the keys train_files"),
        ("workflow.stages=[trian]", "workflow.stages.0: 'trian' is not allowed"),
        ("workflow.resources.trian.mem=3G", "workflow.resources: 'trian' is not allowed; allowed: fetch"),
        (f"{ACTOR}.optim.lr=fast", "actor.optim.lr: 'fast' is not allowed; it must be a number"),
        (f"{ACTOR}.optim.lr=inf", "actor.optim.lr: inf is not allowed"),
        (f"{ACTOR}.optim.betas=[0.9]", "actor.optim.betas"),
        ("prepare.splits={train: [{rows: 3}]}", "prepare.splits.train.0.source: missing"),
        ("prepare.splits.train=3", "prepare.splits.train: 3 is not allowed; it must be a list of a section"),
        ("seed", "cannot read the override 'seed'; write key=value"),
        ("a b=1", "cannot read the override 'a b=1'"),
        ("trainer=[1]", "trainer: [1] is not allowed; it must be a section with the keys total_epochs"),
        ("run_root=${nothing.here}", "an interpolation cannot be resolved"),
    ],
)
def test_refused_with_what_was_given_and_what_is_right(folder: Path, override: str, words: str) -> None:
    (problem,) = refused(folder, override)
    assert words in problem
    assert "\n" not in problem and "Traceback" not in problem


def test_all_problems_in_one_message(folder: Path) -> None:
    problems = refused(
        folder, "seed=x", "trainer.nnode=1", "critic.model.path=y", "actor_rollout_ref.rollout.name=vllm"
    )
    assert len(problems) == 4
    with pytest.raises(ConfigError, match=r"the config has 2 problems:\n  - .*\n  - "):
        small(folder, "one", "two")


def test_time_that_yaml_reads_as_a_number(folder: Path) -> None:
    (folder / "exp" / "timed.yaml").write_text(EXPERIMENT + "workflow: {resources: {train: {time: 24:00:00}}}\n")
    with pytest.raises(ConfigError, match=r'put it in quotes: "86400" .a time like 24:00:00 is a number to YAML'):
        compose(["exp=timed"], config_dir=folder)


def test_broken_yaml_names_the_file(folder: Path) -> None:
    (folder / "exp" / "broken.yaml").write_text("a: [1\n")
    with pytest.raises(ConfigError, match=r"exp=broken: the YAML under .* cannot be composed"):
        compose(["exp=broken"], config_dir=folder)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in REFUSED_VALUES for value in REFUSED_VALUES[key]])
def test_refused_values_by_name(folder: Path, key: str, value: str) -> None:
    (problem,) = refused(folder, f"{key}={value}")
    assert problem == f"{key}: {value!r} is not supported: {REFUSED_VALUES[key][value]}"
    assert value not in allowed_values(annotation_at(key.split(".")))


@pytest.mark.parametrize("key", REFUSED_KEYS)
def test_refused_keys_by_name(folder: Path, key: str) -> None:
    (problem,) = refused(folder, f"{key}.anything=1" if key == "critic" else f"{key}=1")
    assert problem == f"{key}: not supported: {REFUSED_KEYS[key]}"
    assert key not in all_keys()


@pytest.mark.parametrize(("given", "ours"), RENAMED_KEYS.items())
def test_other_spellings_of_keys(folder: Path, given: str, ours: str) -> None:
    value = "false" if "checkpointing" in given else "0.5"
    assert small(folder, f"{given}={value}") == small(folder, f"{ours}={value}") != small(folder)


def test_other_spellings_of_values_and_counts(folder: Path) -> None:
    assert small(folder, f"{ACTOR}.kl_loss_type=low_var").actor_rollout_ref.actor.kl_loss_type == "low_var_kl"
    agg = small(folder, f"{ACTOR}.loss_agg_mode=sequence-mean").actor_rollout_ref.actor.loss_agg_mode
    assert agg == "seq-mean-token-mean"
    shared = small(folder, "actor_rollout_ref.rollout.log_prob_micro_batch_size=8").actor_rollout_ref.rollout
    assert shared.log_prob_micro_batch_size_per_gpu == 4
    (problem,) = refused(folder, "actor_rollout_ref.rollout.name=tensorrt-llm")
    assert "'trtllm' is not supported" in problem
    (problem,) = refused(folder, "actor_rollout_ref.ref.log_prob_micro_batch_size=7")
    assert "7 counts samples over all ranks and does not divide by 2 ranks" in problem


def test_two_spellings_that_differ_are_refused(folder: Path) -> None:
    (problem,) = refused(folder, f"{ACTOR}.lr=1e-5", f"{ACTOR}.optim.lr=1e-6")
    assert "are one option and differ" in problem
    assert small(folder, f"{ACTOR}.lr=1e-5", f"{ACTOR}.optim.lr=1e-5").actor_rollout_ref.actor.optim.lr == 1e-5


def test_aliases_lead_to_keys_of_the_schema() -> None:
    assert set(RENAMED_KEYS.values()) | set(GLOBAL_COUNTS.values()) | set(RENAMED_VALUES) <= set(all_keys())
    assert not (set(RENAMED_KEYS) | set(GLOBAL_COUNTS)) & set(all_keys())


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_composes(name: str) -> None:
    assert compose([f"exp={name}"]).trainer.experiment_name == name


def sections() -> list[type]:
    """Every section that the whole config reaches, those inside lists and dicts too."""
    found: list[type] = []

    def walk(annotation: object) -> None:
        annotation = bare(annotation)
        if is_section(annotation) and annotation not in found:
            found.append(annotation)
            for inner in fields_of(annotation).values():
                walk(inner)
        for argument in get_args(annotation):
            walk(argument)

    walk(Config)
    return found


@pytest.mark.parametrize("section", [*sections(), *SOURCE_OPTIONS.values()], ids=lambda section: section.__name__)
def test_every_field_has_a_doc_line(section: type) -> None:
    docs: dict[str, str] = {}
    for part in reversed(section.__mro__[:-1]):
        docs |= field_docs(part)
    assert set(docs) == set(fields_of(section))
    assert all(doc.endswith((".", ")")) and "\n" not in doc for doc in docs.values())


def test_sections_inside_lists_and_dicts_are_found() -> None:
    names = {section.__name__ for section in sections()}
    assert {"Config", "ResourcesConfig", "SourceConfig", "TinyModelConfig", "OptimConfig"} <= names


def test_composing_is_quick_and_imports_nothing_heavy(folder: Path) -> None:
    program = f"""
import sys, time, pathlib
start = time.process_time()
from hpcrl.config import compose
compose(["exp=small"], config_dir=pathlib.Path({str(folder)!r}))
spent = time.process_time() - start
heavy = [m for m in ("torch", "ray", "transformers", "polars", "pyarrow", "numpy", "wandb") if m in sys.modules]
print(spent, heavy)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    spent, heavy = done.stdout.split(maxsplit=1)
    assert heavy.strip() == "[]"
    assert float(spent) < 1.5, "composing took too much CPU time (0.5 s is usual)"


def test_reading_a_manifest_needs_no_hydra() -> None:
    program = "import sys; from hpcrl.config import from_dict; from_dict({}); print('hydra' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
