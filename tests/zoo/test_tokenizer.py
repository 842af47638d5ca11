"""The tokenizer is lossless, splits digits, and its chat template is that of training."""

from __future__ import annotations

import random

import pytest
from transformers import PreTrainedTokenizerFast

from zoo_training import tasks
from zoo_training.complete import encode_prompt
from zoo_training.corpus import is_table, read_corpus
from zoo_training.data import encode_task
from zoo_training.tokenizer import END, PAD, SPECIAL, token_id, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    pick = random.Random(0)
    texts = [tasks.make(kind, pick).answer for kind in tasks.KINDS for _ in range(100)]
    return train_tokenizer(texts, vocabulary=500)


TEXTS = [
    "def f(x):\n    return x  # done\n",
    "\n\n  \t leading and trailing   ",
    "naïve Straße, 漢字かな, Ελλάδα, 🙂👩‍👩‍👧, \u0000\u200b",
    "1234.5678e-90",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_comes_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_every_digit_is_a_token(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer.tokenize("1203")) == 4
    assert len(tokenizer.tokenize(" 1203")) == 4


def test_special_tokens_come_first_and_stay_whole(tokenizer: PreTrainedTokenizerFast) -> None:
    assert [token_id(tokenizer, token) for token in SPECIAL] == list(range(len(SPECIAL)))
    assert (tokenizer.eos_token, tokenizer.pad_token) == (END, PAD)
    assert len(tokenizer("<|user|>a<|end|>")["input_ids"]) == 3


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_the_chat_template_renders_what_training_saw(tokenizer: PreTrainedTokenizerFast, kind: str) -> None:
    for task in tasks.held_out(kind, 20):
        ids, weights = encode_task(task, tokenizer)
        whole = [*task.messages, {"role": "assistant", "content": task.answer}]
        assert tokenizer.apply_chat_template(whole, return_dict=False) == ids
        prompt = tokenizer.apply_chat_template(task.messages, add_generation_prompt=True, return_dict=False)
        assert prompt == encode_prompt(task, tokenizer) == ids[: len(prompt)]
        assert all(weight == 1 for weight in weights[len(prompt) :])


@pytest.mark.slow
def test_the_corpus_is_source_and_leaves_the_held_out_modules_out() -> None:
    corpus = read_corpus()
    assert len(corpus.held_out) >= 12 and len(corpus.train) > 200
    assert "heapq.py" not in corpus.names and "argparse.py" in corpus.names
    assert not any("site-packages" in name or "/test" in name or "idlelib" in name for name in corpus.names)
    assert not set(corpus.train) & set(corpus.held_out)
    assert len(corpus.sha256) == 64


def test_a_table_is_not_source() -> None:
    assert is_table("(0x1f, 0x2e, 99),\n" * 50) and not is_table("def f(x):\n    return x + 1\n" * 50)
