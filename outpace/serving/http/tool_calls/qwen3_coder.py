"""XML with the name in the tag, `<tool_call><function=name><parameter=key>value</parameter></function>
</tool_call>`: Qwen3-Coder, Qwen3.5 and others."""

from __future__ import annotations

import re

from outpace.serving.http.tool_calls.call_format import Call, Reading, Schemas, long_id
from outpace.serving.http.tool_calls.scanning import BLANKS, behind, may_begin
from outpace.serving.http.tool_calls.xml_values import arguments_of

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END, PARAMETER = "<function=", "</function>", "<parameter="
NAME = re.compile(r"(?:<tool_call>\s*)?<function=([^<>\n]+)>")
BEGINNING = re.compile(r"<tool_call>\s*")  # what may become NAME, before <function=
# a value may have tags in it: it ends where another part of the call follows its last tag. Line feeds
# directly within the tags are not part of it
VALUE = re.compile(
    r"\s*<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|</function>))", re.DOTALL
)


class Qwen3Coder:
    """Implementation of CallFormat. The outer tags may be missing."""

    tags = (BEGIN, FUNCTION)
    opening = ""
    closing = ">"
    special = (BEGIN, END)
    new_id = staticmethod(long_id)

    def read(self, text: str, schemas: Schemas, *, is_end: bool) -> Reading | None:
        rejected = Reading((), len(BEGIN) if text.startswith(BEGIN) else len(FUNCTION))
        undecided = rejected if is_end else None
        named = NAME.match(text)
        if named is None:
            return undecided if _may_be_name(text) else rejected
        name, texts, place = named[1].strip(), dict[str, str](), named.end()
        while found := VALUE.match(text, place):
            texts[found[1].strip()] = found[2]
            place = found.end()
        place = behind(BLANKS, text, place)
        if not text.startswith(FUNCTION_END, place):
            return undecided if may_begin(text[place:], FUNCTION_END, PARAMETER) else rejected
        calls = [Call(name, arguments_of(texts, schemas.get(name, {})))]
        place += len(FUNCTION_END)
        last = behind(BLANKS, text, place)
        if text.startswith(END, last):
            return Reading(calls, last + len(END))
        if not is_end and END.startswith(text[last:]):
            return None
        return Reading(calls, place)


def _may_be_name(text: str) -> bool:
    """Whether NAME may match the text with what follows it."""
    begun = BEGINNING.match(text)
    rest = text[begun.end() :] if begun else text
    if rest.startswith(FUNCTION):
        return not re.search(r"[<>\n]", rest[len(FUNCTION) :])
    return FUNCTION.startswith(rest)
