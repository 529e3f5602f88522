"""Score rules on right, wrong and odd answers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.config.seam import UserError
from hpcrl.rewards import default_compute_score, find_score_function, register_score_function
from hpcrl.rewards.math_boxed import last_boxed, normalised


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("#### 46", "46", 1.0),
        ("####46", "46", 1.0),
        ("so #### 12\nno, #### 46", "46", 1.0),
        ("#### 46\n#### 12", "46", 0.0),
        ("#### 460", "46", 0.0),
        ("#### 4 6", "46", 0.0),
        ("#### 46.", "46", 1.0),
        ("#### 46.5", "46", 0.0),
        ("#### -5", "-5", 1.0),
        ("#### - 5", "-5", 0.0),
        ("#### 5", "-5", 0.0),
        ("#### 046", "46", 1.0),
        ("#### -0", "0", 1.0),
        ("46", "46", 0.0),
        ("", "46", 0.0),
        ("#### " + "9" * 10_000, "46", 0.0),
    ],
)
def test_arithmetic(text: str, truth: str, score: float) -> None:
    assert default_compute_score("hpcrl/arithmetic", text, truth) == score


@pytest.mark.parametrize(
    ("text", "truth", "strict", "flexible"),
    [
        ("It is 72.\n#### 72", "72", 1.0, 1.0),
        ("#### 1,234", "1234", 1.0, 1.0),
        ("#### $18.00", "18", 1.0, 1.0),
        ("#### 72.", "72", 1.0, 1.0),
        ("the answer is 72", "72", 0.0, 1.0),
        ("#### 72 and then 5", "72", 1.0, 0.0),
        ("#### 73", "72", 0.0, 0.0),
        ("#### -3", "-3", 1.0, 1.0),
        ("nothing", "72", 0.0, 0.0),
    ],
)
def test_gsm8k(text: str, truth: str, strict: float, flexible: float) -> None:
    assert default_compute_score("openai/gsm8k", text, truth) == strict
    assert default_compute_score("openai/gsm8k", text, truth, method="flexible") == flexible


def test_gsm8k_pays_for_the_form() -> None:
    assert default_compute_score("openai/gsm8k", "#### 5", "72", format_score=0.1) == 0.1
    assert default_compute_score("openai/gsm8k", "5", "72", format_score=0.1) == 0.0
    with pytest.raises(ValueError, match="strict or flexible"):
        default_compute_score("openai/gsm8k", "5", "72", method="loose")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\dfrac12", r"\frac{1}{2}"),
        ("1/2", r"\frac12"),
        ("-1/2", r"-\frac{1}{2}"),
        ("10,000", "10000"),
        (r"5\text{ cm}", "5"),
        (r"\text{Monday}", "Monday"),
        ("x=5", "5"),
        (".5", "0.50"),
        (r"\sqrt3", r"\sqrt{3}"),
        ("( 1, 2 )", "(1,2)"),
        (r"90^\circ", "90"),
        (r"\frac{\sqrt3}{2}", r"\frac{\sqrt{3}}{2}"),
        (r"\left(3, \frac{\pi}{2}\right)", r"(3,\frac{\pi}{2})"),
        (r"\$5", "5"),
        (r"50\%", "50"),
        ("3.0", "3"),
    ],
)
def test_math_notation(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)
    assert default_compute_score("DigitalLearningGmbH/MATH-lighteval", rf"so $\boxed{{{one}}}$.", other) == 1.0


@pytest.mark.parametrize(
    ("one", "other"), [("100", "1"), ("1,2", "12"), ("(1,200)", "(1200)"), ("x+1", "x"), ("-5", "5")]
)
def test_math_differences(one: str, other: str) -> None:
    assert default_compute_score("HuggingFaceH4/MATH-500", rf"\boxed{{{one}}}", other) == 0.0


def test_boxes() -> None:
    assert last_boxed(r"\boxed{1} then \boxed{\frac{a}{b}} end") == r"\frac{a}{b}"
    assert last_boxed(r"$\boxed 5$") == "5"
    assert last_boxed(r"\fbox{2}") == "2"
    assert last_boxed(r"\boxed{1} \boxed{2") is None
    assert last_boxed("none") is None
    assert last_boxed(r"\boxed") is None


@given(st.text(st.sampled_from("0123456789.,/\\{}=$ -abfrcoxedtsq")))
@settings(max_examples=300, deadline=None)
def test_no_answer_raises(text: str) -> None:
    for source in ("hpcrl/arithmetic", "openai/gsm8k", "math_boxed", "exact_match"):
        assert default_compute_score(source, text + "\\boxed{" + text, "1") in (0.0, 1.0)
    assert normalised(normalised(text)) is not None


def test_exact_match() -> None:
    assert default_compute_score("exact_match/capitals", "I think\n Paris \n", "Paris") == 1.0
    assert (
        default_compute_score("exact_match/capitals", "<answer>Rome</answer> <answer> Paris</answer> !", "Paris") == 1.0
    )
    assert default_compute_score("exact_match", "paris", "Paris") == 0.0
    assert default_compute_score("exact_match", "paris", "Paris", ignore_case=True) == 1.0


@pytest.mark.parametrize("task", ["simple_equations", "word_sorting", "countdown", "arc_agi", "maze"])
def test_reasoning_gym_scores_its_own_answers(task: str) -> None:
    """With the metadata as parquet holds it: as JSON."""
    import reasoning_gym

    entry = reasoning_gym.create_dataset(task, size=1, seed=3)[0]
    extra_info = {"question": entry["question"], "metadata": json.loads(json.dumps(entry["metadata"], default=str))}
    source, truth = f"reasoning_gym/{task}", str(entry["answer"])
    assert default_compute_score(source, f"so\n<answer>\n{truth}\n</answer>", truth, extra_info) == 1.0
    assert default_compute_score(source, "<answer>no idea</answer>", truth, extra_info) < 0.5
    assert default_compute_score(source, "", truth, extra_info) < 0.5


def test_reasoning_gym_needs_its_metadata() -> None:
    with pytest.raises(UserError, match="source_dataset"):
        default_compute_score("reasoning_gym/maze", "1", "1", {})
    with pytest.raises(UserError, match="no_such_task"):
        default_compute_score("reasoning_gym/x", "1", "1", {"metadata": {"source_dataset": "no_such_task"}})


def test_unknown_sources_are_named() -> None:
    with pytest.raises(UserError, match=r"'openai/gsm8'.*did you mean 'openai/gsm8k'.*hpcrl/arithmetic"):
        default_compute_score("openai/gsm8", "1", "1")


def test_a_rule_of_ones_own() -> None:
    register_score_function("mine/*", "hpcrl.rewards.exact_match")
    assert default_compute_score("mine/one", "a", "a") == 1.0
    assert find_score_function("mine/two") is find_score_function("exact_match")


def test_rules_import_no_torch() -> None:
    code = "import sys, hpcrl.rewards as r; r.find_score_function('openai/gsm8k'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
