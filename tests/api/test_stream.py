"""Streaming: text piece by piece."""

from __future__ import annotations

import itertools
from threading import Thread

import pytest
import torch
from transformers import AutoModelForCausalLM

import outpace
from outpace.api.detokenizer import INCOMPLETE


@pytest.mark.slow
def test_pieces_are_the_text(loaded):
    target, draft = loaded
    for settings in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}, {"temperature": 0, "stop": "e"}):
        whole = outpace.generate(target, "def", draft=draft, max_tokens=24, **settings)[0]
        pieces = outpace.stream(target, "def", draft=draft, max_tokens=24, **settings)
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


def test_each_piece_reports_the_number_of_drafted_tokens(loaded):
    target, draft = loaded
    stream = outpace.stream(target, "def", draft=draft, depth=3, max_tokens=24, temperature=0)
    pieces = list(stream.pieces())
    assert sum(piece.num_drafted for piece in pieces) == stream.result.statistics.num_accepted_draft_tokens
    assert [token for piece in pieces for token in piece.tokens] == stream.result.tokens


def test_drafted_tokens_after_a_stop_string_are_not_accepted(loaded):
    target = loaded[0]
    whole = outpace.generate(target, "def", "autoregressive", max_tokens=24, temperature=0)[0]
    found = []
    for place in range(1, len(whole.text) - 1):
        # the target drafts for itself, so that whole drafts are accepted
        settings = {"draft": target, "depth": 6, "temperature": 0, "stop": whole.text[place : place + 2]}
        stream = outpace.stream(target, "def", max_tokens=24, **settings)
        pieces, statistics = list(stream.pieces()), stream.result.statistics
        assert sum(piece.num_drafted for piece in pieces) == statistics.num_accepted_draft_tokens
        assert all(piece.num_drafted <= len(piece.tokens) for piece in pieces)
        if INCOMPLETE not in settings["stop"]:  # else a later token may complete it otherwise
            assert settings["stop"] not in target.tokenizer.decode(stream.result.tokens[:-1])
        found.append(len(pieces[-1].tokens))
    assert min(found) < 7


def test_arguments_are_checked_at_once(loaded):
    with pytest.raises(ValueError, match="takes one prompt"):
        outpace.stream(loaded[0], ["a", "b"], "prompt-lookup")
    with pytest.raises(ValueError, match="empty"):
        outpace.stream(loaded[0], "", "prompt-lookup")


def test_looking_at_the_result_changes_no_piece(loaded):
    target, draft = loaded
    whole = outpace.generate(target, "def", "autoregressive", max_tokens=24, temperature=0)[0].text
    # strings that begin as the text does and end otherwise hold pieces back
    stop = [whole[place : place + 2] + "~~" for place in range(len(whole))]
    pieces = outpace.stream(target, "def", draft=draft, max_tokens=24, temperature=0, stop=stop)
    text = ""
    for piece in pieces:
        text += piece
        assert pieces.result.text.startswith(text)
    assert text == pieces.result.text == whole


def test_nothing_is_decoded_after_close(loaded):
    target, draft = loaded
    pieces = outpace.stream(target, "def", draft=draft, max_tokens=40, temperature=0)
    next(pieces)
    pieces.close()
    assert list(pieces) == []


def test_torch_is_left_as_it_was_between_pieces(loaded):
    target, draft = loaded
    short = outpace.stream(target, "def", draft=draft, max_tokens=8, temperature=0)
    long = outpace.stream(target, "class", draft=draft, max_tokens=40, temperature=0)
    for stream in (short, long, short, long):
        next(stream)
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
    list(short)
    list(long)
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


def test_a_stream_that_is_dropped_gives_the_model_back(tiny):
    model = AutoModelForCausalLM.from_pretrained(tiny.target, dtype=torch.float64).train()
    stream = outpace.stream(model, [5, 6, 7], "prompt-lookup", max_tokens=8)
    list(itertools.islice(stream.pieces(), 2))
    del stream
    assert model.config._attn_implementation == "sdpa" and model.training


def test_two_streams_share_a_model(tiny):
    model = AutoModelForCausalLM.from_pretrained(tiny.target, dtype=torch.float64)
    wholes = [
        outpace.generate(model, [5, token], "prompt-lookup", max_tokens=12 * token)[0].tokens
        for token in (1, 2)
    ]
    streams = [outpace.stream(model, [5, token], "prompt-lookup", max_tokens=12 * token) for token in (1, 2)]
    for first, second in itertools.zip_longest(*(stream.pieces() for stream in streams)):
        assert first or second
    assert [stream.result.tokens for stream in streams] == wholes
    assert model.config._attn_implementation == "sdpa"


def test_a_stream_that_is_closed_during_a_step_ends_after_it(loaded):
    target, draft = loaded
    settings = {"draft": draft, "max_tokens": 40, "temperature": 0}
    whole = outpace.generate(target, "def", **settings)[0]
    stream = outpace.stream(target, "def", on_piece=lambda piece: stream.close(), **settings)
    assert list(stream) == [] and stream.result.finish_reason is None
    assert 0 < len(stream.result.tokens) < 40
    assert stream.result.tokens == whole.tokens[: len(stream.result.tokens)]

    def close(piece):
        closing = Thread(target=stream.close)
        closing.start()
        closing.join()

    stream = outpace.stream(target, "def", on_piece=close, **settings)
    assert list(stream.pieces()) == [] and 0 < len(stream.result.tokens) < 40
    assert outpace.generate(target, "def", **settings)[0].tokens == whole.tokens
