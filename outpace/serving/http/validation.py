"""Errors of pydantic as one sentence and the name of the field."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError

WANTED = {  # pydantic's error type -> what the field takes
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_attributes_type": "an object",
    "string_type": "a string",
    "string_unicode": "text that is valid Unicode",
    "too_short": "at least one element",
}
LIMITS = {
    "greater_than_equal": ("ge", "at least {}"),
    "less_than_equal": ("le", "at most {}"),
    "string_too_long": ("max_length", "at most {} characters"),
    "too_long": ("max_length", "at most {} elements"),
}


def invalid(error: RequestValidationError) -> tuple[str, str | None]:
    """A sentence about the request's first wrong field, and the field as in `messages[0].content`."""
    found = error.errors()
    if any(each["type"] == "json_invalid" for each in found):
        problem = next(each for each in found if each["type"] == "json_invalid")
        reason = str(problem["ctx"]["error"]).lower()
        return f"the request is not JSON: {reason} at character {problem['loc'][-1]}", None
    if not isinstance(error.body, Mapping):
        return "the request is not a JSON object: send one, with content-type application/json", None
    places = [_place(error.body, each) for each in found]
    # a value that may have several types has an error for each: those that went deepest fit it best
    place = max(places, key=len)
    same = [each for each, its_place in zip(found, places, strict=True) if its_place == place]
    name = _name(place)
    param = name if place else None
    if same[0]["type"] == "missing":
        return f"{name} is missing: add it", param
    if same[0]["type"] == "extra_forbidden":
        return f"{name} is not supported: leave it out", param
    wanted = " or ".join(dict.fromkeys(_wanted(each) for each in same))
    return f"{name} is {reprlib.repr(same[0]['input']):.60}; use {wanted}", param


def _place(body: Any, error: Mapping[str, Any]) -> list[str | int]:
    """Keys and indexes from the body to the wrong value. pydantic's `loc` has names of types among them."""
    place: list[str | int] = []
    parts = [part for part in error["loc"] if part != "body"]
    for index, part in enumerate(parts):
        is_key = isinstance(body, Mapping) and part in body
        is_index = isinstance(body, Sequence) and isinstance(part, int) and part < len(body)
        if is_key or is_index:
            body = body[part]
            place.append(part)
        elif error["type"] == "missing" and index == len(parts) - 1:
            place.append(part)
    return place


def _name(place: Sequence[str | int]) -> str:
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return name.removeprefix(".") or "the request"


def _wanted(error: Mapping[str, Any]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in WANTED:
        return WANTED[kind]
    if kind in LIMITS:
        key, words = LIMITS[kind]
        return words.format(context[key])
    if kind == "literal_error":
        return str(context["expected"])
    if kind == "value_error":
        return str(context["error"])
    return "another value"
