"""`suffix`: the answer is to stand between prompt and suffix."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from outpace.serving.http.infill import MARKS, infill

BODY = {"model": "zoo", "prompt": "def add(a, b):\n", "suffix": "\nprint(add(1, 2))", "max_tokens": 4}


@pytest.mark.parametrize("marks", MARKS)
def test_the_marks_stand_before_prompt_suffix_and_answer(model: Any, marks: tuple[str, str, str]) -> None:
    words = copy.deepcopy(model.tokenizer)
    words.add_special_tokens({"additional_special_tokens": list(marks), "bos_token": "<|user|>"})
    first, second, third = words.convert_tokens_to_ids(list(marks))
    before, after = (words(BODY[name])["input_ids"] for name in ("prompt", "suffix"))
    assert infill(words, before, BODY["suffix"]) == [first, *before, second, *after, third]
    bos = words.bos_token_id
    assert infill(words, [bos, *before], BODY["suffix"])[:3] == [bos, first, before[0]]


def test_a_server_fills_in(model: Any, serve: Any) -> None:
    words = copy.deepcopy(model.tokenizer)
    marks = [
        "<|user|>",
        "<|assistant|>",
        "<|end|>",
    ]  # the vocabulary of the model has no other special tokens
    ids = words.convert_tokens_to_ids(marks)
    with serve(dataclasses.replace(model, tokenizer=words), "prompt-lookup") as running:
        tokenizer = running.service.tokenizer

        class Named(type(tokenizer)):
            def get_vocab(self) -> dict[str, int]:
                return dict(zip(MARKS[0], ids, strict=True))

        tokenizer.__class__ = Named
        before, after = (words(BODY[name])["input_ids"] for name in ("prompt", "suffix"))
        same = {"prompt": [ids[0], *before, ids[1], *after, ids[2]], "suffix": None}
        status, found, _ = running.call("/v1/completions", BODY | {"temperature": 0})
        assert status == 200
        assert found["usage"]["prompt_tokens"] == len(same["prompt"])
        again = running.call("/v1/completions", BODY | same | {"temperature": 0})[1]
        assert found["choices"] == again["choices"]
        status, found, _ = running.call("/v1/completions", BODY | {"echo": True})
        assert (status, found["error"]["param"]) == (400, "suffix")


def test_a_model_without_tokens_for_it_refuses_a_suffix(running: Any) -> None:
    status, found, _ = running.call("/v1/completions", BODY)
    assert (status, found["error"]["param"]) == (400, "suffix")
    assert "tokens for infilling" in found["error"]["message"]
