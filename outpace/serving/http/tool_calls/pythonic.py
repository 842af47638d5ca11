"""A list of Python calls, `[name(argument="value"), other()]`: Llama 3.2 and 4, and others."""

from __future__ import annotations

import ast
import json
import re
import warnings
from itertools import islice

from outpace.serving.http.tool_calls.call_format import LLAMA_TAGS, Call, Reading, Schemas, long_id

NAME = re.compile(r"\s*\[\s*([A-Za-z_][\w.]*)\s*\(")
BEGINNING = re.compile(r"\s*(?:\[\s*(?:[A-Za-z_][\w.]*\s*)?)?")  # what may become NAME
LAST = re.compile(r"\)\s*,?\s*\]")  # may end the list
MOST = 64  # places at which the list is tried to end: each is parsed from its beginning
ERRORS = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)  # of the parser of Python


class Pythonic:
    """Implementation of CallFormat. A list that does not begin with a call of one of the tools is text."""

    tags = LLAMA_TAGS
    opening = "["
    closing = "]"
    special = LLAMA_TAGS
    new_id = staticmethod(long_id)

    def read(self, text: str, schemas: Schemas, *, is_end: bool) -> Reading | None:
        tag = next((tag for tag in LLAMA_TAGS if text.startswith(tag)), "")
        rejected = Reading((), len(tag) or 1)
        after = text[len(tag) :]
        named = NAME.match(after)
        if named is None:
            goes_on = BEGINNING.fullmatch(after) and not is_end
            return None if goes_on else rejected
        if named[1] not in schemas:
            return rejected
        ends = [found.end() for found in islice(LAST.finditer(after), MOST)]
        for end in ends:
            try:
                parsed = _parsed(after[:end].strip())
            except ERRORS:
                continue  # a bracket within the list
            calls = _calls(parsed)
            return rejected if calls is None else Reading(calls, len(tag) + end)
        return rejected if is_end or len(ends) == MOST else None


def _parsed(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of "\d" in a text of the model
        return ast.parse(text, mode="eval").body


def _calls(parsed: ast.expr) -> list[Call] | None:
    """The calls of a list; None if it has anything else, or arguments that are no constants."""
    calls: list[Call] = []
    for each in parsed.elts if isinstance(parsed, ast.List) else ():
        if not isinstance(each, ast.Call) or each.args:
            return None
        try:
            arguments = {given.arg: ast.literal_eval(given.value) for given in each.keywords}
            text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            text.encode()  # a part of a surrogate pair is no text
        except ERRORS:
            return None
        if None in arguments:  # **values
            return None
        calls.append(Call(ast.unparse(each.func), text))
    return calls or None
