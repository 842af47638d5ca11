"""Parse methods and their options as written on a command line:
`prompt-lookup:depth=8,max_ngram=2,mcsd:widths=(4,2)`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outpace.models.names import ZOO


@dataclass(frozen=True)
class Method:
    """The name of a recipe and the options given for it."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The method's name in tables: `name`, or `name:option=value,option=value`."""
        if not self.options:
            return self.name
        return self.name + ":" + ",".join(f"{key}={_plain(value)}" for key, value in self.options.items())


def _plain(value: Any) -> str:
    return str(value).replace(" ", "")


def parse_methods(text: str) -> list[Method]:
    """Parse names or recipe files separated by commas, each with options after a colon; a piece with `=` and
    no colon is a further option of the previous method. ValueError for a missing name or a malformed
    option."""
    methods: list[Method] = []
    for piece in split_outside(text, ","):
        name, colon, first = piece.partition(":")
        if colon or "=" not in piece:
            if not name.strip():
                raise ValueError(f"a method's name is missing in {text!r}")
            name = name.strip()
            methods.append(Method(name if name.endswith(".py") else name.replace("_", "-"), {}))
            piece = first
        elif not methods:
            raise ValueError(f"{piece!r} is an option without a method: write name:option=value")
        for option in split_options(piece):
            key, equals, value = option.partition("=")
            if not equals:
                raise ValueError(f"{option!r} is no option: write name:option=value")
            last = methods.pop()
            methods.append(
                Method(last.name, {**last.options, key.strip().replace("-", "_"): option_value(value)})
            )
    if not methods:
        raise ValueError("no method was named")
    return methods


def split_options(text: str) -> list[str]:
    """Split at colons outside brackets, except the one in the name of a bundled model, as in
    draft=zoo:draft."""
    pieces: list[str] = []
    for piece in split_outside(text, ":"):
        if pieces and pieces[-1].endswith("=" + ZOO.removesuffix(":")):
            pieces[-1] += f":{piece}"
        else:
            pieces.append(piece)
    return pieces


def split_outside(text: str, separator: str) -> list[str]:
    """Split at separators outside brackets; blank pieces are dropped."""
    pieces, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces if piece.strip()]


def option_value(text: str) -> Any:
    """The value of an option as Python would read it, or the text itself."""
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
