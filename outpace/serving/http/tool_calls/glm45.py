"""Tool calls as GLM-4.5 and later models write them: the function's name, then keys and values in XML tags,
`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`."""

from __future__ import annotations

import re

from outpace.serving.http.tool_calls.call_format import Call, Reading, Schemas, long_id
from outpace.serving.http.tool_calls.scanning import may_begin
from outpace.serving.http.tool_calls.xml_values import arguments_of

BEGIN, END, KEY = "<tool_call>", "</tool_call>", "<arg_key>"
NAME = re.compile(r"<tool_call>\s*([^\s<>{}\[\]]+)\s*(?=<)")
BEGINNING = re.compile(r"<tool_call>\s*[^\s<>{}\[\]]*\s*")  # what may become NAME
# a value may have tags in it: it ends where another part of the call follows its last tag
VALUE = re.compile(
    r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>(?=\s*(?:<arg_key>|</tool_call>))",
    re.DOTALL,
)
LAST = re.compile(r"\s*</tool_call>")


class Glm45:
    """Implementation of CallFormat."""

    tags = (BEGIN,)
    opening = ""
    closing = ">"
    special = (BEGIN, END, KEY, "</arg_key>", "<arg_value>", "</arg_value>")
    new_id = staticmethod(long_id)

    def read(self, text: str, schemas: Schemas, *, is_end: bool) -> Reading | None:
        rejected = Reading((), len(BEGIN))
        undecided = rejected if is_end else None
        named = NAME.match(text)
        if named is None:
            return undecided if BEGINNING.fullmatch(text) else rejected
        texts, place = dict[str, str](), named.end()
        while found := VALUE.match(text, place):
            texts[found[1].strip()] = found[2]
            place = found.end()
        last = LAST.match(text, place)
        if last is None:
            return undecided if may_begin(text[place:].lstrip(), KEY, END) else rejected
        return Reading([Call(named[1], arguments_of(texts, schemas.get(named[1], {})))], last.end())
