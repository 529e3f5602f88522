"""Arithmetic of bounded size on the syntax tree, never by eval."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from decimal import Decimal, DivisionByZero, InvalidOperation, Overflow, localcontext
from typing import Any

from hpcrl.tools.base import BaseTool
from hpcrl.tools.schemas import ToolResponse

MAX_CHARACTERS = 200
MAX_DEPTH = 40
MAX_DIGITS = 100
"""Digits of any number, intermediate ones included."""
DECIMAL_DIGITS = 28
"""Significant digits of a result that is not a whole number."""

Number = int | Decimal

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class CalculationError(ValueError):
    """The expression cannot be computed; the message is for the model."""


class CalculatorTool(BaseTool):
    """Takes `expression`, answers with its value."""

    config_keys = frozenset()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        try:
            return ToolResponse(calculate(str(parameters.get("expression", "")))), 0.0, {"failed": 0}
        except CalculationError as error:
            return ToolResponse(f"Error: {error}"), 0.0, {"failed": 1}


def calculate(expression: str) -> str:
    """The value of an expression of numbers, + - * / // % ** and parentheses, in plain decimal notation.

    Whole numbers stay exact; others have 28 significant digits. `//` and `%` round down, as in Python.

    Raises:
        CalculationError: not such an expression, or one that is too large.
    """
    if len(expression) > MAX_CHARACTERS:
        raise CalculationError(f"the expression is longer than {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CalculationError("the expression cannot be read") from None
    with localcontext() as context:
        context.prec = MAX_DIGITS + DECIMAL_DIGITS
        try:
            return _shown(_value(tree.body, 0, expression.strip()))
        except (ZeroDivisionError, DivisionByZero):  # the latter: a negative power of 0
            raise CalculationError("division by zero") from None
        except (InvalidOperation, Overflow, OverflowError):
            raise CalculationError("the result is undefined or too large") from None


def _value(node: ast.expr, depth: int, source: str) -> Number:
    if depth > MAX_DEPTH:
        raise CalculationError("the expression is nested too deeply")
    match node:
        case ast.Constant(value=bool()):
            raise CalculationError("only numbers can be computed")
        case ast.Constant(value=int() as number):
            return _bounded(number)
        case ast.Constant(value=float()):
            return _bounded(Decimal((ast.get_source_segment(source, node) or "").replace("_", "")))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, depth + 1, source)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, depth + 1, source)
        case ast.BinOp(left=left, op=op, right=right):
            return _bounded(_apply(op, _value(left, depth + 1, source), _value(right, depth + 1, source)))
    raise CalculationError("only numbers, + - * / // % ** and parentheses are allowed")


def _apply(op: ast.operator, left: Number, right: Number) -> Number:
    if right == 0 and isinstance(op, ast.Div | ast.FloorDiv | ast.Mod):
        raise ZeroDivisionError
    match op:
        case ast.Pow():
            return _power(left, right)
        case ast.Div():
            quotient = Decimal(left) / Decimal(right)
            whole = isinstance(left, int) and isinstance(right, int) and left % right == 0
            return int(left // right) if whole else quotient
        case ast.FloorDiv():
            if isinstance(left, int) and isinstance(right, int):
                return left // right
            return (Decimal(left) / Decimal(right)).to_integral_value(rounding="ROUND_FLOOR")
        case ast.Mod():
            if isinstance(left, int) and isinstance(right, int):
                return left % right
            remainder = Decimal(left) % Decimal(right)  # takes the sign of the left side, Python's that of the right
            return remainder + Decimal(right) if remainder and (remainder < 0) != (right < 0) else remainder
    if type(op) not in _OPERATORS:
        raise CalculationError("only the operators + - * / // % ** are allowed")
    if isinstance(left, int) and isinstance(right, int):
        return _OPERATORS[type(op)](left, right)
    return _OPERATORS[type(op)](Decimal(left), Decimal(right))


def _power(base: Number, exponent: Number) -> Number:
    if not isinstance(base, int) or not isinstance(exponent, int) or exponent < 0:
        return Decimal(base) ** Decimal(exponent)
    if abs(base) > 1 and exponent * math.log10(abs(base)) > MAX_DIGITS:
        raise CalculationError(f"the numbers are larger than {MAX_DIGITS} digits")
    return base**exponent


def _bounded(number: Number) -> Number:
    if isinstance(number, int):
        too_large = number.bit_length() > 4 * MAX_DIGITS or len(str(abs(number))) > MAX_DIGITS
    else:
        too_large = not number.is_finite() or (number != 0 and abs(number.adjusted()) >= MAX_DIGITS)
    if too_large:
        raise CalculationError(f"the numbers are larger than {MAX_DIGITS} digits")
    return number


def _shown(number: Number) -> str:
    if isinstance(number, int):
        return str(number)
    with localcontext() as context:
        context.prec = DECIMAL_DIGITS
        text = f"{+number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
