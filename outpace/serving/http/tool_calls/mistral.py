"""Calls behind a special token: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]` of older Mistral models,
and `[TOOL_CALLS]name[ARGS]{...}` of newer ones."""

from __future__ import annotations

import re
import uuid

from outpace.serving.http.tool_calls.call_format import Reading, Schemas
from outpace.serving.http.tool_calls.json_text import calls_of, read_json

BEGIN, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
# some tokenizers have no token before the arguments
NAME = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
# what may become NAME
BEGINNING = re.compile(r"\s*[\w.-]*\s*(?:\[[A-Z_]*\]?)?\w*(?:\[[A-Z]*\]?)?\s*")


class Mistral:
    """Implementation of CallFormat."""

    tags = (BEGIN,)
    opening = ""
    closing = "}]"
    special = (BEGIN, CALL_ID, ARGUMENTS)

    def new_id(self) -> str:
        """Nine letters and digits: Mistral's chat templates accept no other ids."""
        return uuid.uuid4().hex[:9]

    def read(self, text: str, schemas: Schemas, *, is_end: bool) -> Reading | None:
        rejected = Reading((), len(BEGIN))
        after = text[len(BEGIN) :]
        named = NAME.match(after)
        start = len(after) - len(after.lstrip()) if named is None else named.end()
        if named is None and after[start : start + 1] not in ("[", "{"):
            goes_on = BEGINNING.fullmatch(after) and not is_end
            return None if goes_on else rejected
        try:
            found = read_json(after, start)
            if found is None:
                return rejected if is_end else None
            value, end = found
            calls = calls_of(value if named is None else {"name": named[1], "arguments": value})
        except ValueError:
            return rejected
        return Reading(calls, len(BEGIN) + end) if calls else rejected
