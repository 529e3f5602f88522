"""`prepare.splits.<split>.<i>.options`: what each registered source of prompts can be told."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from hpcrl.config.base import StrList, section
from hpcrl.config.data import SourceConfig
from hpcrl.config.seam import UserError

FileFormat = Literal["parquet", "jsonl", "json", "csv"]
Operation = Literal["+", "-", "*"]


def _all_operations() -> list[Operation]:
    return ["+", "-", "*"]


ROW_FIELDS = (
    "prompt",
    "ground_truth",
    "messages",
    "data_source",
    "ability",
    "style",
    "question",
    "answer",
    "agent_name",
    "need_tools_kwargs",
    "tools_kwargs",
    "interaction_kwargs",
    "metadata",
)
"""Our fields of a row: the keys of `columns`."""


@section
class PromptOptions:
    """What every source can be told."""

    instruction: str = ""
    """Text put after the question, as a paragraph of its own."""
    system_prompt: str | None = None
    """System message put before the question."""
    agent_name: str | None = None
    """Agent loop of these rows; null: `rollout.agent.default_agent_loop`."""


@section
class ArithmeticOptions(PromptOptions):
    max_operand: Annotated[int, Field(gt=1)] = 100
    """Operands are whole numbers from 0 up to, not including, this."""
    ops: list[Operation] = Field(default_factory=_all_operations, min_length=1)
    """Operations that are asked for."""
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of all questions that only the test split can ask, and the others never do."""
    demonstrations: bool = False
    """Add a `messages` column: the question with an assistant's turns, for supervised warm start."""
    right_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of demonstrations that call the calculator and answer rightly; the rest answer at once, at random."""


@section
class ReasoningGymOptions(PromptOptions):
    task: str
    """Name of a reasoning_gym task."""
    task_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the task; keys of `options` that are not listed here are joined to them."""


@section
class FileOptions(PromptOptions):
    format: FileFormat | None = None
    """Format of the files; null: by their suffix."""


@section
class HubOptions(PromptOptions):
    revision: str | None = None
    """Branch, tag or commit of a hub data set; null: its main branch."""
    offline: bool = False
    """Take a hub data set from the local cache only."""


@section
class HuggingFaceOptions(HubOptions):
    config: str | None = None
    """Configuration of the data set (in `configs:` of its README, or a folder's name); null: the only one."""


@section
class GSM8KOptions(HubOptions):
    config: str = "main"
    """Configuration of the data set: main or socratic."""
    instruction: str = 'Reason step by step, and end with the final answer after "####".'
    """Text put after the question, as a paragraph of its own."""


@section
class MathOptions(HubOptions):
    subjects: StrList = Field(default_factory=list)
    """Subjects to take (algebra, number_theory, …); empty: all."""
    instruction: str = "Reason step by step, and put the final answer within \\boxed{}."
    """Text put after the question, as a paragraph of its own."""


SOURCE_OPTIONS: dict[str, type] = {
    "arithmetic": ArithmeticOptions,
    "reasoning_gym": ReasoningGymOptions,
    "file": FileOptions,
    "huggingface": HuggingFaceOptions,
    "gsm8k": GSM8KOptions,
    "math": MathOptions,
}
"""Registered sources and their options; a test holds this against the registry."""

GENERATORS = ("arithmetic", "reasoning_gym")
"""Sources that make their rows, and so must be told how many."""

HUB_IDS = {"gsm8k": "openai/gsm8k", "math": "DigitalLearningGmbH/MATH-lighteval"}
"""What a source reads when no path is given."""


def nearest(name: str, names: Any) -> str:
    """ ", nearest: x" when one of `names` is like `name`, else the list of them all."""
    close = difflib.get_close_matches(name, list(names), n=2, cutoff=0.5)
    return f"; nearest: {', '.join(close)}" if close else f"; there are: {', '.join(names)}"


def parse_options(source: SourceConfig, where: str) -> Any:
    """The typed options of a source.

    Args:
        source: the source's config.
        where: its place in the config, for messages.

    Raises:
        UserError: the source or an option is unknown, or a value does not fit.
    """
    if source.source not in SOURCE_OPTIONS:
        raise UserError(f"{where}.source: unknown source {source.source!r}{nearest(source.source, SOURCE_OPTIONS)}")
    cls = SOURCE_OPTIONS[source.source]
    known = {field.name for field in dataclasses.fields(cls)}
    given = dict(source.options)
    if cls is ReasoningGymOptions:
        extra = {key: given.pop(key) for key in list(given) if key not in known}
        given["task_options"] = {**given.get("task_options", {}), **extra}
    for key in given:
        if key not in known:
            raise UserError(f"{where}.options.{key}: unknown option of {source.source}{nearest(key, sorted(known))}")
    try:
        return TypeAdapter(cls).validate_python(given)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}" for detail in error.errors()
        )
        raise UserError(f"{where}.options of {source.source}: {problems}") from None
