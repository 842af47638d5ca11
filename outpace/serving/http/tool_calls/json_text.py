"""JSON values at the beginning of a text that may not be complete, and the calls that they are."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from outpace.serving.http.tool_calls.call_format import Call

DECODER = json.JSONDecoder()


def read_json(text: str, start: int) -> tuple[Any, int] | None:
    """The object or list that begins at `start`, and where it ends; None if it is not complete. ValueError if
    it is neither, whatever follows."""
    if start == len(text):
        return None
    if text[start] not in "{[":
        raise ValueError("no object and no list")
    try:
        value, end = DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        from_json(text[start:], allow_inf_nan=False, allow_partial="trailing-strings")
        return None
    # so that what is refused when it is complete is what is refused before
    from_json(text[start:end], allow_inf_nan=False)
    return value, end


def calls_of(value: Any) -> list[Call]:
    """The call that a JSON value is, or the calls of a list. ValueError if it is none."""
    if isinstance(value, list):
        return [call for each in value for call in calls_of(each)]
    if not isinstance(value, dict):
        raise ValueError("a call is an object")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # JSON in a string, as in OpenAI's API
        arguments = from_json(arguments, allow_inf_nan=False)
    if not isinstance(value.get("name"), str) or not isinstance(arguments, dict):
        raise ValueError("a call has a name and arguments")
    return [Call(value["name"], json.dumps(arguments, ensure_ascii=False, allow_nan=False))]
