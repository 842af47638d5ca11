"""Messages of a response have the log probabilities of their own tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from outpace.serving.http.logprob_formats import TextPlaces
from outpace.serving.http.output import OutputParser, TextOutput
from outpace.serving.http.response_items import PlacedLogprob, ResponseItems
from outpace.serving.http.tool_calls.formats import FORMATS
from outpace.serving.http.tool_calls.found_calls import FoundCalls

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def placed(tokens: list[bytes]) -> list[PlacedLogprob]:
    bytes_of: Any = SimpleNamespace(add_up=True, in_text=tokens.__getitem__)
    place_of = TextPlaces(bytes_of, ())
    return [PlacedLogprob({"token": index}, *place_of(index)) for index in range(len(tokens))]


def streamed(parser: OutputParser, tokens: list[bytes], text: str, size: int) -> ResponseItems:
    """The items, with `size` tokens at once and the text that they complete."""
    items, logprobs, done = ResponseItems(), placed(tokens), 0
    for at in range(0, len(tokens), size):
        some = logprobs[at : at + size]
        end = min(len(text), max(each.start + each.size for each in some))
        items.push(parser.push(text[done:end]), some)
        done = end
    items.push(parser.finish())
    items.close()
    return items


def tokens_of(items: ResponseItems) -> list[list[int]]:
    """The tokens of each message."""
    messages = [item["content"][0] for item in items.items if item["type"] == "message"]
    return [[each["token"] for each in part["logprobs"]] for part in messages]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_tokens_of_calls_are_in_no_message(size: int) -> None:
    call = [CALL[at : at + 5].encode() for at in range(0, len(CALL), 5)]
    tokens = [b"Sure", b".", b"\n ", *call, b"\n", *call, b"Do", b"ne", b""]
    last = len(tokens) - 1
    items = streamed(FoundCalls(FORMATS["hermes"], {}), tokens, f"Sure.\n {CALL}\n{CALL}Done", size)
    assert [item["type"] for item in items.items] == ["message", "function_call", "function_call", "message"]
    assert tokens_of(items) == [[0, 1], [last - 2, last - 1, last]]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_parts_of_characters_belong_to_the_text(size: int) -> None:
    tokens = [b"a", b"\xe2", b"\x82", b"\xac\xe2", b"\x82\xac", b"b", b""]
    assert tokens_of(streamed(TextOutput(), tokens, "a€€b", size)) == [list(range(len(tokens)))]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_tokens_behind_a_stop_string_are_in_no_message(size: int) -> None:
    assert tokens_of(streamed(TextOutput(), [b"one", b" tw", b"o th", b"ree"], "one t", size)) == [[0, 1]]
