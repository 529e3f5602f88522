"""The calculator against exact arithmetic, and what it must not do."""

from __future__ import annotations

import asyncio
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.tools import load_tools
from hpcrl.tools.calculator import CalculationError, calculate

numbers = st.integers(-1000, 1000) | st.decimals(-100, 100, places=2, allow_nan=False)
leaves = numbers.map(lambda n: f"({n})")
expressions = st.recursive(
    leaves, lambda e: st.tuples(e, st.sampled_from("+-*/"), e).map(lambda t: f"({t[0]} {t[1]} {t[2]})"), max_leaves=6
)


def exact(expression: str) -> Fraction:
    """By Python itself, over fractions."""
    import re

    return eval(re.sub(r"\d+(?:\.\d+)?", lambda m: f"Fraction('{m.group()}')", expression), {"Fraction": Fraction})


@given(expressions)
@settings(max_examples=200, deadline=None)
def test_agrees_with_exact_arithmetic(expression: str) -> None:
    try:
        expected = exact(expression)
    except ZeroDivisionError:
        with pytest.raises(CalculationError, match="division by zero"):
            calculate(expression)
        return
    if len(expression) > 200:
        return
    assert abs(Fraction(calculate(expression)) - expected) <= abs(expected) * Fraction(1, 10**26)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12+34", "46"),
        ("7*89", "623"),
        ("0.1+0.2", "0.3"),
        ("10/2", "5"),
        ("0 * (1/3)", "0"),
        ("1/3", "0.3333333333333333333333333333"),
        ("-7//2", "-4"),
        ("-7 % 3", "2"),
        ("-5.5 % 2", "0.5"),
        ("-5.5 // 2", "-3"),
        ("2**-2", "0.25"),
        ("2**10", "1024"),
        ("1e3", "1000"),
        ("-0.0", "0"),
        (" (1 + 2) * 3 ", "9"),
        ("10**99//10**98", "10"),
    ],
)
def test_values(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "12 +",
        "12 + 34 =",
        "__import__('os')",
        "a+1",
        "[1]",
        "'1'",
        "1 if 1 else 2",
        "True",
        "1j",
        "f(2)",
        "1<2",
        "1;2",
    ]
    + ["9**9**9", "2**1000", "10**100", "1.5**1e9", "(-8)**(1/3)", "1/0", "0**-1", "1%0", "1//0.0", "1e999999999"]
    + ["1" * 150, "(" * 90 + "1" + ")" * 90, "-" * 150 + "1", "1+" * 120 + "1", "1\0", "é", "0x" + "f" * 90],
)
def test_everything_else_is_refused_at_once(expression: str) -> None:
    start = time.process_time()
    if expression.startswith("(("):
        assert calculate(expression) == "1"
        return
    with pytest.raises(CalculationError):
        calculate(expression)
    assert time.process_time() - start < 0.5


@given(st.text(st.sampled_from("0123456789+-*/%.() e_")), st.integers(0, 200))
@settings(max_examples=300, deadline=1000)
def test_no_text_raises_anything_else(text: str, at: int) -> None:
    try:
        result = calculate(text[:at])
    except CalculationError:
        return
    assert len(result) <= 300
    Fraction(result)


def test_as_a_tool() -> None:
    tool = load_tools("configs/tools/calculator.yaml")["calculator"]
    instance, _ = asyncio.run(tool.create("t1"))
    response, reward, metrics = asyncio.run(tool.execute(instance, {"expression": "6*7"}))
    assert (response.text, reward, metrics) == ("42", 0.0, {"failed": 0})
    response, _, metrics = asyncio.run(tool.execute(instance, {"expression": "six"}))
    assert response.text.startswith("Error:") and metrics == {"failed": 1}
