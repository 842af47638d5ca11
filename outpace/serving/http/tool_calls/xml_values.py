"""Values of parameters that a model writes as text between XML tags, without quotation marks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

TYPES: dict[str, tuple[type, ...]] = {  # of JSON schemas -> of Python
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "string": (str,),
}
SPELLINGS = {"true": True, "false": False, "null": None, "none": None}  # those of Python too


def arguments_of(texts: Mapping[str, str], schema: Mapping[str, Any]) -> str:
    """The arguments of a call as JSON text; `schema`: JSON schema of the parameters."""
    given = schema.get("properties")
    parameters = given if isinstance(given, Mapping) else {}
    values = {name: typed(text, parameters.get(name), schema) for name, text in texts.items()}
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except ValueError:  # a number that is too large
        return json.dumps(texts, ensure_ascii=False)


def typed(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """The value that the text is by the first type of the schema that fits, but null before all others; the
    text itself where none fits or is known. `root`: the schema that references are relative to."""
    types = list(_types(schema, root, 8))
    for each in sorted(types, key=lambda kind: kind != "null"):
        if each == "string":
            return text
        value = SPELLINGS.get(text.strip().lower(), text)
        if value is text:
            value = _json(text)
        if each == "integer" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, TYPES.get(each, ())) and (each == "boolean" or not isinstance(value, bool)):
            return value
    return text


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Names of the types that a schema allows, in order; `depth`: how far references and alternatives are
    followed."""
    if not isinstance(schema, Mapping) or not depth:
        return
    yield from (each for each in [schema.get("type"), *_list(schema.get("type"))] if isinstance(each, str))
    constants = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else ())]
    for value in () if "type" in schema else constants:
        yield next((name for name, kinds in TYPES.items() if isinstance(value, kinds)), "string")
    if isinstance(reference := schema.get("$ref"), str):
        yield from _types(_part(root, reference), root, depth - 1)
    for alternatives in ("anyOf", "oneOf", "allOf"):
        for each in _list(schema.get(alternatives)):
            yield from _types(each, root, depth - 1)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _part(root: Any, reference: str) -> Any:
    """The part of the schema that a reference such as `#/$defs/color` means; None if there is none."""
    for key in reference.removeprefix("#").split("/")[1:]:
        root = root.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(root, Mapping) else None
    return root


def _json(text: str) -> Any:
    """The JSON value that the text is, or the text itself."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
