"""Outputs that follow a JSON schema, a regular expression or a grammar, or are one of several texts; in the
fields of vLLM's server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, Strict

from outpace.sampling.grammar import choice_grammar, regex_grammar
from outpace.serving.http.schemas.closed import Closed

ANY_OBJECT = {"type": "object", "additionalProperties": True}  # schema of all JSON objects


@dataclass(frozen=True)
class Constraint:
    """What the output of a request must follow."""

    field: str  # of the request
    kind: str  # json, regex, choice or grammar
    value: Any

    def for_settings(self) -> dict[str, Any]:
        """The argument of `resolve_settings`: json_schema or grammar. ValueError, which begins with its
        name, for a value that cannot be read. It may take long."""
        if self.kind == "json":
            return {"json_schema": _schema(self.value)}
        if self.kind == "regex":
            return {"grammar": regex_grammar(self.value)}
        if self.kind == "choice":
            return {"grammar": choice_grammar(self.value)}
        return {"grammar": self.value}


class StructuredOutputs(Closed):
    """What the output must follow: one of these. A structural tag is not supported."""

    neutral: ClassVar[Mapping[str, Any]] = {
        "disable_fallback": False,
        "disable_additional_properties": False,
    }

    json_: Annotated[str | dict[str, Any] | None, Field(alias="json")] = None
    json_object: Annotated[bool, Strict()] | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(fail_fast=True, min_length=1)] | None = None
    grammar: str | None = None
    disable_any_whitespace: Annotated[bool, Strict()] | None = None  # no effect: JSON has one line here

    @property
    def constraints(self) -> list[Constraint]:
        """Those that are given."""
        given = [
            ("json", "json", self.json_),
            ("json_object", "json", ANY_OBJECT if self.json_object else None),
            ("regex", "regex", self.regex),
            ("choice", "choice", self.choice),
            ("grammar", "grammar", self.grammar),
        ]
        return [
            Constraint(f"structured_outputs.{name}", kind, value)
            for name, kind, value in given
            if value is not None
        ]


def _schema(given: str | dict[str, Any]) -> Any:
    """The JSON schema that is given as an object or as JSON text."""
    if not isinstance(given, str):
        return given
    try:
        schema = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"json_schema cannot be read: {error}") from error
    if not isinstance(schema, dict):
        raise ValueError("json_schema cannot be read: it is no JSON object")
    return schema
