"""Text piece by piece."""

from __future__ import annotations

import pytest

import outpace


def test_pieces_are_the_text(loaded):
    target, draft = loaded
    for ask in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}, {"temperature": 0, "stop": "e"}):
        whole = outpace.generate(target, "def", draft=draft, max_tokens=24, **ask)[0]
        pieces = outpace.stream(target, "def", draft=draft, max_tokens=24, **ask)
        assert "".join(pieces) == whole.text
        assert pieces.result.tokens == whole.tokens and pieces.result.finish_reason == whole.finish_reason


def test_an_interrupted_stream_keeps_what_there_is(loaded):
    target, draft = loaded
    whole = outpace.generate(target, "def", draft=draft, max_tokens=40, temperature=0)[0]
    pieces = outpace.stream(target, "def", draft=draft, max_tokens=40, temperature=0)
    first = next(pieces)
    pieces.close()
    result = pieces.result
    assert whole.text.startswith(first) and result.text.startswith(first)
    assert result.finish_reason is None and result.tokens == whole.tokens[: len(result.tokens)]


def test_each_piece_says_which_tokens_were_drafted(loaded):
    target, draft = loaded
    stream = outpace.stream(target, "def", draft=draft, depth=3, max_tokens=24, temperature=0)
    pieces = list(stream.pieces())
    assert sum(piece.num_drafted for piece in pieces) == stream.result.statistics.num_accepted_draft_tokens
    assert [token for piece in pieces for token in piece.tokens] == stream.result.tokens


def test_arguments_are_checked_at_once(loaded):
    with pytest.raises(ValueError, match="takes one prompt"):
        outpace.stream(loaded[0], ["a", "b"], "prompt-lookup")
    with pytest.raises(ValueError, match="empty"):
        outpace.stream(loaded[0], "", "prompt-lookup")
