"""Tool calls are found in text, however it is divided into pieces."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from outpace.serving.http.tool_calls import (
    CallDelta,
    ForcedCall,
    OutputParser,
    TaggedCalls,
    TextDelta,
    TextOutput,
)

ADD = '{"name": "add", "arguments": {"a": 1, "b": {"c": "}</x>"}}}'
NONE = '{"name": "stop", "arguments": {}}'


def parsed(make: Callable[[], OutputParser], pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and name and arguments of each call."""
    parser = make()
    text, calls = "", list[list[str]]()
    for delta in [each for piece in pieces for each in parser.push(piece)] + parser.finish():
        if isinstance(delta, TextDelta):
            assert "".join(pieces)[delta.start :].startswith(delta.text)
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
    """The text whole, by characters, in pairs of characters, and in two pieces at every place."""
    pairs = [text[at : at + 2] for at in range(0, len(text), 2)]
    return [[text], list(text), pairs, *([text[:at], text[at:]] for at in range(len(text)))]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("no call <b> < tool>", "no call <b> < tool>", []),
        (f"Sure.\n<tool_call>\n{ADD}\n</tool_call>", "Sure.", ["add"]),
        (f"<tool_call>{ADD}</tool_call>\n<tool_call>{NONE}</tool_call>", "", ["add", "stop"]),
        (f"<tool_call>{NONE}</tool_call> and more", " and more", ["stop"]),
        ("<tool_call>not JSON</tool_call>", "not JSON", []),
        ('<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", ["add"]),
        ('<tool_call>{"name": "a\\"dd", "arguments": {"a": 1}}</tool_call>', "", ['a"dd']),
        (
            '<tool_call>{"name": "a\\dd", "arguments": {}}</tool_call>',
            '{"name": "a\\dd", "arguments": {}}',
            [],
        ),
        ("<tool_call>" + "[" * 100_000, "[" * 100_000, []),
        (f"<tool_call>{NONE}", "", ["stop"]),
        ("ends like a tag <tool_c", "ends like a tag <tool_c", []),
    ],
)
def test_calls_between_tags(text: str, content: str, calls: list[str]) -> None:
    for pieces in divisions(text) if len(text) < 1000 else [[text]]:
        found, named = parsed(TaggedCalls, pieces)
        assert found == content and [name for name, _ in named] == calls
        for name, arguments in named:
            assert json.loads(arguments) == ({} if name == "stop" else json.loads(arguments))
            assert name == "stop" or json.loads(arguments)["a"] == 1


def test_a_forced_call() -> None:
    for pieces in divisions(ADD):
        assert parsed(ForcedCall, pieces) == ("", [("add", '{"a": 1, "b": {"c": "}</x>"}}')])
    cut = ADD[:-6]
    for pieces in divisions(cut):
        _, [(name, arguments)] = parsed(ForcedCall, pieces)
        assert name == "add" and cut.endswith(arguments)


def test_text_without_tools_is_passed_on() -> None:
    assert parsed(TextOutput, ["<tool_call>", "", "x"]) == ("<tool_call>x", [])
