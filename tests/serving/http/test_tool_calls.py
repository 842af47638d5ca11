"""Tool calls are found in text, however it is divided into pieces."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from outpace.serving.http.output import CallDelta, OutputParser, TextDelta, TextOutput
from outpace.serving.http.tool_calls.call_format import long_id
from outpace.serving.http.tool_calls.forced_call import ForcedCall
from outpace.serving.http.tool_calls.formats import FORMATS
from outpace.serving.http.tool_calls.found_calls import FoundCalls
from outpace.serving.http.tool_calls.xml_values import typed

ADD = '{"name": "add", "arguments": {"a": 1, "b": {"c": "}</x>"}}}'
STOP = '{"name": "stop", "arguments": {}}'
ADDED = ("add", {"a": 1, "b": {"c": "}</x>"}})
STOPPED = ("stop", {})
PARAMETERS = {"text": "string", "count": "integer", "share": "number", "on": "boolean", "all": "array"}
SCHEMAS = {
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "object"}}},
    "stop": {"type": "object", "properties": {}},
    "say": {"type": "object", "properties": {name: {"type": kind} for name, kind in PARAMETERS.items()}},
}


def say(*pairs: tuple[str, str]) -> str:
    """A call in the XML of Qwen3-Coder."""
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
    return f"<tool_call>\n<function=say>\n{inner}</function>\n</tool_call>"


def tell(*pairs: tuple[str, str], gap: str = "\n") -> str:
    """A call in the XML of GLM."""
    inner = "".join(f"{gap}<arg_key>{k}</arg_key>{gap}<arg_value>{v}</arg_value>" for k, v in pairs)
    return f"<tool_call>say{inner}{gap}</tool_call>"


def tagged(inner: str) -> str:
    return f"<tool_call>{inner}</tool_call>"


MANY = [("text", "3"), ("count", "3"), ("share", "2.50"), ("on", "True"), ("all", '[1, "</a>"]')]
MANY_READ = ("say", {"text": "3", "count": 3, "share": 2.5, "on": True, "all": [1, "</a>"]})
CODE = "if a < b:\n  print('</parameter></tool_call></function>')\n"
Example = tuple[str, str, list[tuple[str, Any]]]
EXAMPLES: dict[str, list[Example]] = {
    "hermes": [
        ("no call <b> < tool>", "no call <b> < tool>", []),
        (f"Sure.\n<tool_call>\n{ADD}\n</tool_call>", "Sure.", [ADDED]),
        (f"{tagged(ADD)}\n{tagged(STOP)}", "", [ADDED, STOPPED]),
        (f"One {tagged(STOP)} two {tagged(STOP)}\n three ", "One two\n three ", [STOPPED] * 2),
        (f"{tagged(STOP)} and more", " and more", [STOPPED]),
        (tagged("not JSON"), tagged("not JSON"), []),
        (tagged(""), tagged(""), []),
        (f"<tool_call>oops {tagged(STOP)}", "<tool_call>oops", [STOPPED]),
        (tagged('{"arguments": {"a": 1}, "name": "add"}'), "", [("add", {"a": 1})]),
        (tagged('{"name": "add", "arguments": {"a": 1}, "id": "x"}'), "", [("add", {"a": 1})]),
        (tagged('{"name": "a\\"dd", "arguments": {"a": 1}}'), "", [('a"dd', {"a": 1})]),
        (tagged('{"name": "add", "arguments": "{\\"a\\": 1}"}'), "", [("add", {"a": 1})]),
        (tagged('{"name": "add", "arguments": {"a": "</tool_call>"}}'), "", [("add", {"a": "</tool_call>"})]),
        (tagged('{"name": "add", "arguments": {"a": "\\ud83c\\udf89 é"}}'), "", [("add", {"a": "🎉 é"})]),
        (tagged(f"{ADD}\n{STOP}"), "", [ADDED, STOPPED]),
        (tagged(f"[{ADD}, {STOP}]"), "", [ADDED, STOPPED]),
        (tagged('{"name": "stop"}'), "", [STOPPED]),
        *(
            (tagged(text), tagged(text), [])
            for text in (
                '{"name": "a\\dd", "arguments": {}}',
                '{"name": "add", "arguments": {"a": NaN}}',
                '{"name": "add", "arguments": {"a": 1e999}}',
                '{"name": "add", "arguments": {"a": "\\ud83c"}}',
                '{"name": "add", "arguments": {"a": "line\nfeed"}}',
                '{"name": "add", "arguments": [1]}',
                '{"arguments": {}}',
                '{"a": 1',
                f"{STOP} and more",
            )
        ),
        (f"<tool_call>{STOP}", "", [STOPPED]),
        (f"<tool_call>{STOP}</tool_", "", [STOPPED]),
        (f"<tool_call>{ADD[:-6]}", f"<tool_call>{ADD[:-6]}", []),
        ("ends like a tag <tool_c", "ends like a tag <tool_c", []),
        (f"{tagged(STOP)} <tool_c", " <tool_c", [STOPPED]),
    ],
    "qwen3_coder": [
        ("a < b, <function or <parameter=x>", "a < b, <function or <parameter=x>", []),
        (f"Now.\n\n{say(*MANY)}", "Now.", [MANY_READ]),
        (f"{say(('text', CODE))}\n{say()}", "", [("say", {"text": CODE}), ("say", {})]),
        (say(("text", "\n two\n"), ("other", "4")), "", [("say", {"text": "\n two\n", "other": "4"})]),
        ("<function=stop></function> end", " end", [STOPPED]),
        ("<tool_call><function=stop>\n</function>", "", [STOPPED]),
        ("<tool_call><function=stop>\n</function> not", " not", [STOPPED]),
        ("<function=unknown><parameter=a>1</parameter></function>", "", [("unknown", {"a": "1"})]),
        (tagged(STOP), tagged(STOP), []),
        *(
            (text, text, [])
            for text in (say(("text", "x"))[:-26], "<function=a b", "<function=\n>", "<tool_call>")
        ),
        (f"<function=stop> no {say()}", "<function=stop> no", [("say", {})]),
    ],
    "glm45": [
        (f"Now.\n{tell(*MANY)}", "Now.", [MANY_READ]),
        (tell(*MANY, gap="") + tell(gap=""), "", [MANY_READ, ("say", {})]),
        (tell(("text", " </arg_value> ")), "", [("say", {"text": " </arg_value> "})]),
        (tell(("text", "</tool_call>")), "", [("say", {"text": "</tool_call>"})]),
        *(
            (text, text, [])
            for text in (tagged(STOP), tagged("a b"), "<tool_call>say", "<tool_call>say <arg_key>x")
        ),
        (tell(("count", "9" * 5000)), "", [("say", {"count": "9" * 5000})]),
    ],
    "llama3_json": [
        ('{"name": "add", "parameters": {"a": 1}}', "", [("add", {"a": 1})]),
        (f"{ADD}; {STOP}\n", "", [ADDED, STOPPED]),
        (f"<|python_tag|>{STOP}", "", [STOPPED]),
        (f"I call <|python_tag|>{STOP};{STOP}", "I call", [STOPPED] * 2),
        ('<|python_tag|>{"name": "unknown"}', "", [("unknown", {})]),
        *(
            (text, text, [])
            for text in (
                '{"name": "Ada", "age": 36}',
                '{"name": "unknown", "parameters": {}}',
                "{curly}",
                "; {",
                f"An example: {STOP}",
                f'<|python_tag|>search.call(query="{STOP}")',
                ADD[:-3],
            )
        ),
        (f"{STOP}; and {STOP}", f"; and {STOP}", [STOPPED]),
    ],
    "pythonic": [
        ("[stop()]", "", [STOPPED]),
        (
            '[add(a=1, b={"c": "}</x>"}), say(text="[x()]", all=[1, None], on=True)]',
            "",
            [ADDED, ("say", {"text": "[x()]", "all": [1, None], "on": True})],
        ),
        ("<|python_start|>[other.name(a=-1.5)]", "<|python_start|>[other.name(a=-1.5)]", []),
        ("Yes <|python_start|> [stop( )] ", "Yes", [STOPPED]),
        *(
            (text, text, [])
            for text in (
                "[1] is a source",
                "[ ]",
                "[unknown()]",
                "[stop(1)]",
                "[stop(**{'a': 1})]",
                "[stop(a=b)]",
                "[stop(a='\\ud83c')]",
                "[stop(a=1",
                "[stop() + 1]",
                "See [stop()]",
                "[stop(a='" + ")]" * 100,
            )
        ),
    ],
    "mistral": [
        (f"[TOOL_CALLS][{ADD}, {STOP}]", "", [ADDED, STOPPED]),
        (f"[TOOL_CALLS] [{STOP}] then", " then", [STOPPED]),
        (
            'Yes.[TOOL_CALLS]add[ARGS]{"a": "]"}[TOOL_CALLS]stop{}',
            "Yes.",
            [("add", {"a": "]"}), STOPPED],
        ),
        ("[TOOL_CALLS]stop[CALL_ID]a1B2c3D4e[ARGS]{}", "", [STOPPED]),
        *(
            (text, text, [])
            for text in ("[TOOL_CALLS]", "[TOOL_CALLS]stop", "[TOOL_CALLS]no call", "[TOOL_CALLS][]")
        ),
        (f"[TOOL_CALLS]{STOP}", "", [STOPPED]),
        (
            "[TOOL_CALLS]stop[ARGS]{'a': 1} [TOOL_CALLS]stop[ARGS]{}",
            "[TOOL_CALLS]stop[ARGS]{'a': 1}",
            [STOPPED],
        ),
    ],
}
CASES = [(name, example) for name, examples in EXAMPLES.items() for example in examples]


def parsed(make: Callable[[], OutputParser], pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and name and arguments of each call."""
    parser = make()
    text, calls = "", list[list[str]]()
    for delta in [each for piece in pieces for each in parser.push(piece)] + parser.finish():
        if isinstance(delta, TextDelta):
            assert delta.text and "".join(pieces)[delta.start :].startswith(delta.text)
            text += delta.text
        elif isinstance(delta, CallDelta):
            assert delta.index == len(calls)
            calls.append([delta.name, ""])
        else:
            assert delta.text
            calls[delta.index][1] += delta.text
    assert parser.num_calls == len(calls)
    return text, [(name, arguments) for name, arguments in calls]


def divisions(text: str) -> list[list[str]]:
    """The text whole, by characters, in pairs of characters, in two pieces at every place, and at random."""
    pairs = [text[at : at + 2] for at in range(0, len(text), 2)]
    draw, found = random.Random(len(text)), [[text], list(text), pairs]
    for _ in range(20):
        cuts = sorted(draw.randrange(len(text) + 1) for _ in range(draw.randrange(1, 6)))
        found.append([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    return found + [[text[:at], text[at:]] for at in range(len(text))]


@pytest.mark.parametrize(("name", "example"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)])
def test_calls_of_a_format(name: str, example: Example) -> None:
    text, content, calls = example
    make = partial(FoundCalls, FORMATS[name], SCHEMAS)
    for pieces in divisions(text) if len(text) < 1000 else [[text], [text[:2000], text[2000:]]]:
        found, named = parsed(make, pieces)
        assert found == content
        assert [(name, json.loads(arguments)) for name, arguments in named] == calls


@pytest.mark.parametrize("name", EXAMPLES)
def test_texts_made_of_parts_of_calls_are_read_alike_in_any_division(name: str) -> None:
    draw = random.Random(name)
    make = partial(FoundCalls, FORMATS[name], SCHEMAS)
    for _ in range(60):
        parts = [draw.choice(EXAMPLES[name])[0] for _ in range(3)]
        cuts = [sorted(draw.randrange(len(part) + 1) for _ in range(2)) for part in parts]
        text = "".join(part[a:b] for part, (a, b) in zip(parts, cuts, strict=True))[:400]
        whole = parsed(make, [text])
        assert all(parsed(make, pieces) == whole for pieces in divisions(text)[1:23])


def test_a_deep_or_long_call_is_read_fast() -> None:
    make = partial(FoundCalls, FORMATS["hermes"], SCHEMAS)
    deep = "<tool_call>" + "[" * 100_000
    assert parsed(make, [deep]) == (deep, [])
    long = tagged(json.dumps({"name": "say", "arguments": {"text": "x" * 200_000}}))
    _, [(name, arguments)] = parsed(make, [long[at : at + 4] for at in range(0, len(long), 4)])
    assert (name, len(json.loads(arguments)["text"])) == ("say", 200_000)


@pytest.mark.parametrize("name", FORMATS)
def test_ids_of_calls_differ_and_suit_the_chat_template(name: str) -> None:
    ids = {FORMATS[name].new_id() for _ in range(9)}
    assert len(ids) == 9
    assert all(len(each) == 9 and each.isalnum() for each in ids) == (name == "mistral")


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("3", {"type": "string"}, "3"),
        ("3", {}, "3"),
        ("3", None, "3"),
        ("3.0", {"type": "integer"}, 3),
        ("3.5", {"type": "integer"}, "3.5"),
        ("3", {"type": "number"}, 3),
        ("true", {"type": "integer"}, "true"),
        ("False", {"type": "boolean"}, False),
        ("1", {"type": "boolean"}, "1"),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ("nothing", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "nothing"),
        ("7", {"type": ["integer", "string"]}, 7),
        ("seven", {"type": ["integer", "string"]}, "seven"),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("2", {"const": 2}, 2),
        ("2", {"$ref": "#/$defs/a~1b"}, 2),
        ("2", {"$ref": "#/$defs/none"}, "2"),
        ("2", {"$ref": "#/$defs/self"}, "2"),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ("{'a': 1}", {"type": "object"}, "{'a': 1}"),
        ("1", {"type": 5, "enum": 3, "anyOf": {}}, "1"),
    ],
)
def test_values_in_xml_have_the_types_of_the_schema(text: str, schema: Any, value: Any) -> None:
    root = {"$defs": {"a/b": {"type": "integer"}, "self": {"$ref": "#/$defs/self"}}}
    found = typed(text, schema, root)
    assert found == value and type(found) is type(value)


def test_a_forced_call() -> None:
    make = partial(ForcedCall, long_id)
    for pieces in divisions(ADD):
        assert parsed(make, pieces) == ("", [("add", '{"a": 1, "b": {"c": "}</x>"}}')])
    for end in range(len('{"name": "add", "arguments": {') + 1, len(ADD)):
        expected = ADD[len('{"name": "add", "arguments": ') : min(end, len(ADD) - 1)]
        for pieces in divisions(ADD[:end]):
            assert parsed(make, pieces) == ("", [("add", expected)])
    escaped = '{"name": "a\\"b", "arguments": {}}'
    assert all(parsed(make, pieces) == ("", [('a"b', "{}")]) for pieces in divisions(escaped))
    assert parsed(make, ["{"]) == ("{", [])


def test_text_without_tools_is_passed_on() -> None:
    assert parsed(TextOutput, ["<tool_call>", "", "x"]) == ("<tool_call>x", [])
