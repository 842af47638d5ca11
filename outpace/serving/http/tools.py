"""Tools: functions that the model may or must call, and the JSON schema of a call that it must make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outpace.serving.http.schema_references import relocated

AUTO, NONE, REQUIRED = "auto", "none", "required"


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None  # JSON schema of its arguments; None: it takes none

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        given = {"name": self.name, "description": self.description, "parameters": self.schema}
        function = {name: value for name, value in given.items() if value is not None}
        return {"type": "function", "function": function}

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        return self.parameters or {"type": "object", "properties": {}}

    def call_schema(self, place: str) -> dict[str, Any]:
        """JSON schema of a call: the name, then the arguments. `place`: JSON pointer to their schema."""
        return {
            "type": "object",
            "properties": {"name": {"const": self.name}, "arguments": {"$ref": place}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }

    def parameters_at(self, place: str) -> dict[str, Any]:
        """JSON schema of the arguments for the JSON pointer `place` of a larger schema."""
        return relocated(self.schema, place)


@dataclass(frozen=True)
class Toolbox:
    """The tools of a request and the choice among them. ValueError if the choice is not among the tools."""

    tools: Sequence[Tool] = ()
    choice: str = AUTO  # AUTO, NONE, REQUIRED or the name of a tool

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if self.choice == REQUIRED and not names:
            raise ValueError("tool_choice is required, but there are no tools: add some")
        if self.choice not in (AUTO, NONE, REQUIRED, *names):
            known = ", ".join(names) or "none"
            raise ValueError(f"tool_choice names {self.choice!r}; the request's tools are: {known}")

    @property
    def is_forced(self) -> bool:
        """Whether the model must call a tool."""
        return self.choice not in (AUTO, NONE)

    @property
    def may_call(self) -> bool:
        """Whether the model may or must call a tool."""
        return bool(self.tools) and self.choice != NONE

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """Name of each tool -> JSON schema of its arguments."""
        return {tool.name: tool.schema for tool in self.tools}

    def for_template(self) -> list[dict[str, Any]] | None:
        """The tools as chat templates take them; None if the model may not call any."""
        return [tool.for_template() for tool in self.tools] if self.may_call else None

    def schema(self) -> dict[str, Any]:
        """JSON schema of a call of the chosen tool, or of any tool."""
        chosen = [tool for tool in self.tools if self.choice in (REQUIRED, tool.name)]
        # a definition each: references in one tool's parameters mean parts of that tool's parameters
        placed = {str(number): tool for number, tool in enumerate(chosen)}
        calls = [tool.call_schema(f"#/$defs/{number}") for number, tool in placed.items()]
        found = calls[0] if len(calls) == 1 else {"anyOf": calls}
        parameters = {number: tool.parameters_at(f"#/$defs/{number}") for number, tool in placed.items()}
        return found | {"$defs": parameters}
