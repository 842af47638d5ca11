"""Moves a JSON schema to another place in a larger one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DATA = ("const", "default", "enum", "examples")  # keywords whose values are no schemas
NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")  # name -> schema


def relocated(schema: Any, place: str) -> Any:
    """The schema with its references to its own parts, `#` and `#/...`, below the JSON pointer `place`, at
    which the larger schema has it."""
    if isinstance(schema, list):
        return [relocated(each, place) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            found[key] = place + value[1:]
        elif key in NAMED and isinstance(value, Mapping):
            found[key] = {name: relocated(each, place) for name, each in value.items()}
        else:
            found[key] = value if key in DATA else relocated(value, place)
    return found
