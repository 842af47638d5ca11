"""A forced call follows its tool's JSON schema, in which references mean parts of that schema alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outpace.serving.http.schema_references import relocated
from outpace.serving.http.tools import Tool, Toolbox

COLOR = {"enum": ["red", "blue"]}
LIST = {
    "type": "object",
    "properties": {"color": COLOR, "next": {"$ref": "#"}},
    "required": ["color"],
    "additionalProperties": False,
}


def of_color(reference: str, **parts: Any) -> dict[str, Any]:
    """The schema of an object whose color is defined elsewhere."""
    fields = {"color": {"$ref": reference}}
    return {
        "type": "object",
        "properties": fields,
        "required": ["color"],
        "additionalProperties": False,
    } | parts


SCHEMAS = {
    "$defs": of_color("#/$defs/color", **{"$defs": {"color": COLOR}}),
    "definitions": of_color("#/definitions/color", definitions={"color": COLOR}),
    "property": of_color(
        "#/properties/other", properties={"color": {"$ref": "#/properties/other"}, "other": COLOR}
    ),
    "root": {"$ref": "#/$defs/own", "$defs": {"own": of_color("#/$defs/color"), "color": COLOR}},
}


def accepts(toolbox: Toolbox, text: str) -> bool:
    """Whether the grammar of a forced call can generate the text."""
    xgrammar = pytest.importorskip("xgrammar")
    grammar = xgrammar.Grammar.from_json_schema(json.dumps(toolbox.schema()), any_whitespace=False)
    tokens = xgrammar.TokenizerInfo([bytes([each]) for each in range(256)], stop_token_ids=[0])
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(tokens).compile_grammar(grammar))
    return matcher.accept_string(text) and matcher.is_completed()


def call(arguments: Any, name: str = "lamp") -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("choice", ["required", "lamp"])
def test_references_in_parameters(schema: dict[str, Any], choice: str) -> None:
    other = Tool("stop", None, of_color("#/$defs/color", **{"$defs": {"color": {"enum": ["green"]}}}))
    toolbox = Toolbox([other, Tool("lamp", None, schema)], choice)
    assert accepts(toolbox, call({"color": "red"}))
    assert not accepts(toolbox, call({"color": "green"}))
    # the same name of a definition means another one in another tool
    assert accepts(toolbox, call({"color": "green"}, "stop")) == (choice == "required")
    assert not accepts(toolbox, call({"color": "red"}, "stop"))


@pytest.mark.parametrize("choice", ["required", "lamp"])
def test_a_reference_to_the_root_means_the_parameters(choice: str) -> None:
    toolbox = Toolbox([Tool("lamp", None, LIST), Tool("stop", None, None)], choice)
    inner = {"color": "red", "next": {"color": "blue"}}
    assert accepts(toolbox, call(inner))
    assert not accepts(toolbox, call({"color": "red", "next": {"name": "lamp", "arguments": inner}}))


def test_only_references_are_moved() -> None:
    schema = {
        "properties": {
            "$ref": {"type": "string"},
            "a": {"$ref": "#"},
            "b": {"$ref": "https://example.org/#/x"},
        },
        "enum": [{"$ref": "#"}],
        "anyOf": [{"$ref": "#/properties/a"}, {"$ref": "#anchor"}],
    }
    found = relocated(schema, "#/$defs/0")
    assert found["properties"]["a"] == {"$ref": "#/$defs/0"}
    assert found["anyOf"] == [{"$ref": "#/$defs/0/properties/a"}, {"$ref": "#anchor"}]
    assert (found["enum"], found["properties"]["$ref"]) == (schema["enum"], schema["properties"]["$ref"])
    assert found["properties"]["b"] == schema["properties"]["b"]


@pytest.mark.parametrize("name", ["definitions", "root"])
def test_a_model_is_forced_by_references(client: Any, name: str) -> None:
    tool = {"type": "function", "function": {"name": "lamp", "parameters": SCHEMAS[name]}}
    found = client.chat.completions.create(
        model="zoo",
        messages=[{"role": "user", "content": "Say hello to Noah."}],
        temperature=0,
        max_tokens=60,
        tools=[tool],
        tool_choice="required",
    )
    [choice] = found.choices
    assert choice.finish_reason == "tool_calls"
    assert json.loads(choice.message.tool_calls[0].function.arguments)["color"] in COLOR["enum"]
