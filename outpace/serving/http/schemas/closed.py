"""Objects of requests in which nothing is ignored silently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class Closed(BaseModel):
    """An object whose unknown fields are errors. Clients send some that are not supported here with the value
    that asks for nothing, or as null: these are accepted."""

    model_config = ConfigDict(extra="forbid")
    neutral: ClassVar[Mapping[str, Any]] = {}  # field that is not supported -> its value without effect

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known, neutral = cls.model_fields.keys(), cls.neutral
        aliases = {field.alias for field in cls.model_fields.values()}

        def asks(name: str, value: Any) -> bool:
            return name in known or name in aliases or value not in (None, neutral.get(name))

        return {name: value for name, value in given.items() if asks(name, value)}
