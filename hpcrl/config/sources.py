"""`prepare.splits.<split>.<i>.options`: what each registered source of prompts can be told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from hpcrl.config.base import StrList, section
from hpcrl.config.columns import unknown_fields
from hpcrl.config.data import SourceConfig
from hpcrl.config.keys import fields_of, nearest
from hpcrl.config.messages import ConfigError, describe_all, offer
from hpcrl.config.reasoning_gym import task_names

FileFormat = Literal["parquet", "jsonl", "json", "csv"]
Operation = Literal["+", "-", "*"]


def _all_operations() -> list[Operation]:
    return ["+", "-", "*"]


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
    """Share of demonstrations that call the calculator and answer rightly; the rest give up at once."""


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


SOURCE_KEYS: dict[str, tuple[str, ...]] = {
    "arithmetic": ("split", "seed"),
    "reasoning_gym": ("seed",),
    "file": ("path", "columns"),
    "huggingface": ("path", "split", "columns"),
    "gsm8k": ("path", "split"),
    "math": ("path", "split"),
}
"""Keys that a source reads besides rows, data_source and options, which all read."""

DATA_SOURCES = {
    "arithmetic": "hpcrl/arithmetic",
    "reasoning_gym": "reasoning_gym/{task}",
    "gsm8k": "openai/gsm8k",
    "math": "DigitalLearningGmbH/MATH-lighteval",
}
"""What a source of known content calls its rows, where `data_source` is not given."""


def parse_options(source: SourceConfig, where: str) -> Any:
    """The typed options of a source.

    Args:
        source: the source's config.
        where: its place in the config, for messages.

    Raises:
        ConfigError: the source, an option or a column's field is unknown, a value does not fit, or a key is given
            that the source does not read. All of it is named.
    """
    name = source.source
    if name not in SOURCE_OPTIONS:
        raise ConfigError(f"{where}.source: unknown source {name!r}{_nearest(name, SOURCE_OPTIONS)}")
    cls = SOURCE_OPTIONS[name]
    problems = [*_unread_keys(source, where), *unknown_fields(source, where)]
    given = dict(source.options)
    if cls is ReasoningGymOptions:
        extra = {key: given.pop(key) for key in list(given) if key not in fields_of(cls)}
        given["task_options"] = {**given.get("task_options", {}), **extra}
    for key in list(given):
        if key not in fields_of(cls):
            del given[key]
            problems.append(f"{where}.options.{key}: unknown option of {name}{_nearest(key, sorted(fields_of(cls)))}")
    options: Any = None
    try:
        options = TypeAdapter(cls).validate_python(given)
    except ValidationError as failure:
        problems += describe_all(failure, cls, f"{where}.options.")
    if isinstance(options, ReasoningGymOptions) and task_names() and options.task not in task_names():
        problems.append(f"{where}.options.task: unknown task {options.task!r}{_nearest(options.task, task_names())}")
    if problems:
        raise ConfigError(problems)
    return options


def default_data_source(source: SourceConfig) -> str | None:
    """The data_source of the rows, as far as the config alone tells it."""
    if source.data_source is not None:
        return source.data_source
    name = DATA_SOURCES.get(source.source)
    return name and name.format(task=source.options.get("task"))


def _unread_keys(source: SourceConfig, where: str) -> Iterator[str]:
    reads = SOURCE_KEYS[source.source]
    for key in ("path", "split", "seed", "columns"):
        if key not in reads and getattr(source, key) not in (None, {}):
            read = ", ".join(("rows", *reads, "data_source", "options"))
            yield f"{where}.{key}: the source {source.source} does not read it; it reads {read}"


def _nearest(name: str, names: Iterable[str]) -> str:
    """The names that are like `name`, else all of them."""
    return offer(nearest(name, names, cutoff=0.5)) or f"; there are: {', '.join(names)}"
