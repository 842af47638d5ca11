"""Drafts with another vocabulary: opened with both tokenizers by recipes that translate, refused by
others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import outpace
from tests.tiers import slow

PROMPTS = ["def add(a, b):", "class Stack:\n    def push", "naïve 🙂"]
METHODS = [
    name
    for name, path in outpace.recipes.files().items()
    if "draft: CrossVocabularyDraft" in path.read_text()
]


@pytest.fixture(scope="module")
def plain(loaded):
    found = outpace.generate(
        loaded[0], PROMPTS, "autoregressive", max_tokens=24, temperature=0, ignore_eos=True
    )
    return [result.tokens for result in found]


def test_there_are_such_methods() -> None:
    assert {"tli", "slem"} <= set(METHODS)


@pytest.mark.parametrize("draft", ["stranger", slow("lookalike"), slow("draft")])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_is_that_of_plain_decoding(loaded, tiny, plain, method, draft) -> None:
    other = outpace.load(getattr(tiny, draft), dtype="float64")
    found = outpace.generate(
        loaded[0], PROMPTS, method, draft=other, max_tokens=24, temperature=0, ignore_eos=True, batch=3
    )
    assert [result.tokens for result in found] == plain
    assert all(result.statistics.num_spec_steps for result in found)


@pytest.mark.parametrize("method", METHODS)
def test_a_row_alone_is_the_row_in_a_batch(loaded, tiny, method) -> None:
    settings = {
        "max_tokens": 16,
        "temperature": 0.9,
        "seed": 5,
        "draft": outpace.load(tiny.stranger, dtype="float64"),
    }
    together = outpace.generate(loaded[0], PROMPTS, method, **settings)
    assert [result.tokens for result in together] == [
        outpace.generate(loaded[0], prompt, method, **settings)[0].tokens for prompt in PROMPTS
    ]


def test_a_draft_may_be_named(loaded, tiny) -> None:
    assert outpace.generate(loaded[0], "def", "tli", draft=tiny.stranger, max_tokens=4)[0].tokens


def test_other_methods_refuse_such_a_draft_and_name_one_that_does_not(loaded, tiny) -> None:
    with pytest.raises(ValueError, match="a method that translates such as tli"):
        outpace.generate(loaded[0], "def", draft=tiny.stranger, max_tokens=4)
    with pytest.raises(ValueError, match="a method that translates such as tli"):
        outpace.generate(loaded[0], "def", draft=tiny.lookalike, max_tokens=4)


def test_drafts_that_cannot_be_translated_are_refused(loaded, tiny) -> None:
    with pytest.raises(ValueError, match="tli needs draft: a smaller model, whatever its vocabulary"):
        outpace.generate(loaded[0], "def", "tli", max_tokens=4)
    with pytest.raises(ValueError, match="is unknown, but translating between vocabularies needs both"):
        outpace.generate(loaded[0], "def", "tli", draft=loaded[1].target, max_tokens=4)
    with pytest.raises(ValueError, match="translating between vocabularies needs both"):
        model: Any = AutoModelForCausalLM.from_pretrained(tiny.target)
        ids = torch.tensor([loaded[0].tokenizer("def")["input_ids"]])
        model.generate(ids, custom_generate=outpace.hf("tli", draft=tiny.stranger), max_new_tokens=4)
