"""A text replayed without its model gives the engine's counts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outpace.api import generate, load
from outpace.bench.measure.replay import RecordedText, build, read, replay
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.no_draft import NoDraft
from outpace.recipes import RecipeError, get
from outpace.verifiers.match import Match

PROMPTS = (
    "def read(path):\n    with open(path) as file:\n        return file.read()\n\n\ndef write(path, text):\n",
    "for name, value in sorted(table.items()):\n    print(name, value)\n" * 3,
    "class Stack:\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n",
    "def read(path):\n    with open(path) as file:\n        return file.read()\n\n\ndef write(path, line):\n",
)
METHODS: list[tuple[str, dict[str, Any], float]] = [
    ("prompt-lookup", {}, 0.0),
    ("prompt-lookup", {"allow_shorter": True, "depth": 4}, 1.0),
    ("suffix-decoding", {}, 1.0),
    ("suffix-decoding", {"tree": True, "max_spec_offset": 3.0}, 0.0),
    ("sam-decoding", {}, 0.0),
    ("sam-decoding", {}, 1.0),
    ("autoregressive", {}, 0.0),
]


@pytest.fixture(scope="module")
def target() -> Any:
    return load("zoo:target", dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "temperature"), METHODS)
def test_counts_are_those_of_the_engine(
    target: Any, name: str, options: dict[str, Any], temperature: float
) -> None:
    settings = {"max_tokens": 40, "temperature": temperature, "seed": 3, "batch": 1}
    live = generate(target, list(PROMPTS), name, **settings, **options)
    texts = [
        RecordedText(target.tokenizer(prompt)["input_ids"], result.tokens)
        for prompt, result in zip(PROMPTS, live, strict=True)
    ]
    stop = (target.tokenizer.eos_token_id,)
    found = replay(name, build(get(name), options, target.target.vocab), texts, stop=stop, max_tokens=40)
    for counts, result in zip(found.each, live, strict=True):
        statistics = result.statistics
        assert (counts.row_steps, counts.drafted, counts.accepted, counts.generated) == (
            statistics.num_steps,
            statistics.num_draft_tokens,
            statistics.num_accepted_draft_tokens,
            statistics.num_tokens,
        )
    figures = found.figures()
    assert figures["mean_acceptance_length"] == sum(len(t.tokens) for t in texts) / figures["steps"]
    if name == "autoregressive":
        assert figures["mean_acceptance_length"] == 1 and figures["acceptance_rate"] is None
    elif temperature == 0:
        assert figures["accepted"] > 0


@pytest.mark.slow
def test_replayed_texts_are_learned_for_later_texts() -> None:
    text = RecordedText([1], list(range(10, 60)))
    found = replay("suffix-decoding", build(get("suffix-decoding"), {}, 100), [text, text])
    first, second = (counts.mean_acceptance_length for counts in found.each)
    assert first == 1 and second > 5


def test_a_text_that_a_stop_token_ended_had_longer_drafts() -> None:
    """Its drafts were limited by the largest number of tokens, those of another text by its end."""
    text, parts = (
        RecordedText([1, 2, 3, 4, 5, 6, 1, 2], [3, 9]),
        build(get("prompt-lookup"), {"allow_shorter": True}, 100),
    )
    ended = replay("prompt-lookup", parts, [text], stop=(9,), max_tokens=40).counts
    cut = replay("prompt-lookup", parts, [text], stop=(8,), max_tokens=40).counts
    assert (cut.drafted, cut.accepted) == (1, 1) and ended.accepted == 1 and ended.drafted > 3


def test_methods_with_a_model_are_refused() -> None:
    for name in ("speculative-sampling", "mcsd", "tli", "specinfer", "rasd"):
        with pytest.raises(RecipeError, match=f"{name} drafts or learns with a model"):
            build(get(name), {}, 100)
    with pytest.raises(RecipeError, match="sam-decoding drafts or learns with a model"):
        build(get("sam-decoding"), {"auxiliary": "zoo:draft"}, 100)


def test_a_drafter_that_looks_at_scores_is_refused_when_it_does() -> None:
    class Looking(NoDraft):
        def observe(self, step: Any) -> None:
            if step.scores.logits is not None:
                step.scores.logits.topk(8)

    @recipe(paper="", family="training-free")
    def looking(target: Target) -> Parts:
        return Parts(target, Looking(), Match(), Fixed(1))

    with pytest.raises(RecipeError, match="learns with a model"):
        replay("looking", build(looking, {}, 9), [RecordedText([1, 2], [3, 4])])


def encode(text: str) -> list[int]:
    return list(text.encode())


def texts(folder: Path, rows: Sequence[Any], name: str = "past.jsonl") -> Path:
    path = folder / name
    whole = (
        json.dumps({"results": rows}) if path.suffix == ".json" else "\n".join(map(json.dumps, rows)) + "\n\n"
    )
    path.write_text(whole)
    return path


def test_texts_come_in_words_or_numbers(tmp_path: Path) -> None:
    rows = [
        {"prompt": "ab", "text": "cd"},
        {"prompt": [1, 2], "tokens": [3], "text": "not this"},
        {"prompt_token_ids": [1], "prompt": "nor this", "token_ids": [2, 3]},
        {"prompt": "a", "text": ""},
    ]
    expected = [RecordedText([97, 98], [99, 100]), RecordedText([1, 2], [3]), RecordedText([1], [2, 3])]
    for name in ("past.jsonl", "past.json"):
        assert read(texts(tmp_path, rows, name), encode, encode, 200) == expected


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "a"}, 'has no "prompt"'),
        ({"prompt": "a"}, 'has no "text"'),
        ({"prompt": "a", "tokens": [5, 300]}, "beyond the tokenizer's 200"),
        ("a", 'has no "prompt"'),
    ],
)
def test_invalid_input_is_refused(tmp_path: Path, row: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(texts(tmp_path, [row]), encode, encode, 200)
    (tmp_path / "bad.jsonl").write_text("no")
    with pytest.raises(ValueError, match="neither lines of JSON"):
        read(tmp_path / "bad.jsonl", encode, encode, 200)
