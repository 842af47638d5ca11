"""JSON between tags, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3."""

from __future__ import annotations

from outpace.serving.http.tool_calls.call_format import Call, Reading, Schemas, long_id
from outpace.serving.http.tool_calls.json_text import calls_of, read_json
from outpace.serving.http.tool_calls.scanning import SEPARATORS, behind

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes:
    """Implementation of CallFormat. There may be several calls between two tags, and the last tag may be
    missing at the end of the text."""

    tags = (BEGIN,)
    opening = ""
    closing = "}>"
    special = (BEGIN, END)
    new_id = staticmethod(long_id)

    def read(self, text: str, schemas: Schemas, *, is_end: bool) -> Reading | None:
        place, calls = len(BEGIN), list[Call]()
        try:
            while True:
                place = behind(SEPARATORS, text, place)
                if calls and text.startswith(END, place):
                    return Reading(calls, place + len(END))
                if calls and END.startswith(text[place:]):
                    return Reading(calls, len(text)) if is_end else None
                found = read_json(text, place)
                if found is None:
                    break
                calls += calls_of(found[0])
                place = found[1]
        except ValueError:
            return Reading((), len(BEGIN))
        return Reading((), len(BEGIN)) if is_end else None
