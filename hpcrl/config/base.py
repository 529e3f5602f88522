"""What every config section shares: frozen, keyword-only, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass as pydantic_dataclass

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def section(cls: type[T]) -> type[T]:
    """A config section: a frozen pydantic dataclass with a doc line under each field (`keys.field_docs` reads them)."""
    settings = ConfigDict(extra="forbid", validate_default=False, allow_inf_nan=False, defer_build=True)
    return pydantic_dataclass(frozen=True, kw_only=True, config=settings)(cls)  # type: ignore[return-value]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StrList = Annotated[list[str], BeforeValidator(_as_list)]
"""A list of strings; a single string is a list of one."""
