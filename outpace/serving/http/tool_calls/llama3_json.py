"""JSON at the start of the text or behind a special token, `{"name": ..., "parameters": {...}}`: Llama 3.1
and later, with several calls separated by semicolons."""

from __future__ import annotations

from outpace.serving.http.tool_calls.call_format import LLAMA_TAGS, Reading, Schemas, long_id
from outpace.serving.http.tool_calls.json_text import calls_of, read_json


class LlamaJson:
    """Implementation of CallFormat. An object without a tag is a call if it names one of the tools: it may be
    the answer, else."""

    tags = LLAMA_TAGS
    opening = "{;"
    closing = "}"
    special = LLAMA_TAGS
    new_id = staticmethod(long_id)

    def read(self, text: str, schemas: Schemas, *, is_end: bool) -> Reading | None:
        tag = next((tag for tag in LLAMA_TAGS if text.startswith(tag)), ";" if text[0] == ";" else "")
        after = text[len(tag) :]
        rejected = Reading((), len(tag) or 1)
        try:
            found = read_json(after, len(after) - len(after.lstrip()))
            if found is None:
                return rejected if is_end else None
            calls = calls_of(found[0])
        except ValueError:
            return rejected
        if tag not in LLAMA_TAGS and not all(call.name in schemas for call in calls):
            return rejected
        return Reading(calls, len(tag) + found[1]) if calls else rejected
