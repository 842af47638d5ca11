"""A target and its heads learn to complete fragments of programs."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import outpace
from outpace.models.fragment_token import KEY
from outpace.training.features import Batch
from outpace.training.fragments import with_fragments
from outpace.training.lessons.fragments import FragmentLesson
from outpace.training.methods import named
from outpace.training.run import train
from outpace.training.texts import Example

CODE = "import os\n\nfor index in range(10):\n    print(index + 1)\n"


def test_markers_stand_behind_identifiers_keywords_and_operators() -> None:
    tokenizer = outpace.load("zoo:target").tokenizer
    tokens = tuple(tokenizer(CODE, add_special_tokens=False)["input_ids"])
    marked = with_fragments(Example(tokens, 4), tokenizer, 7)
    assert tuple(token for token in marked.tokens if token != 7) == tokens
    assert marked.first == 4 and marked.tokens[:4] == tokens[:4]  # the prompt has none
    pieces, piece = list[str](), list[int]()
    for token in with_fragments(Example(tokens, 0), tokenizer, 7).tokens:
        if token == 7:
            pieces.append(tokenizer.decode(piece).strip())
            piece = []
        else:
            piece.append(token)
    assert {"import", "os", "for", "in"} <= {*pieces} and "range" in " ".join(pieces)
    # a text that was cut is marked up to its end
    cut = tokenizer('print("a" + ', add_special_tokens=False)["input_ids"]
    assert 7 in with_fragments(Example(tuple(cut), 1), tokenizer, 7).tokens


def test_labels_behind_the_last_fragment_are_left_out(model: Any) -> None:
    method = named("syntax-aligned-medusa")
    config = replace(method.defaults(), fragments=replace(method.defaults().fragments, token=9))
    lesson: Any = method.lesson(method.untrained(model, config), model.target, config)
    assert isinstance(lesson, FragmentLesson) and lesson.num_steps == 5
    tokens = torch.tensor([[1, 2, 3, 9, 4, 5, 6, 7, 9, 8, 8, 8, 8, 8, 8]])
    learns = torch.ones_like(tokens, dtype=torch.bool)
    batch = Batch(tokens, learns, learns, {})
    taught = torch.stack([lesson.taught(batch, step) for step in range(5)], 1)
    for column, row in zip(lesson.columns(batch).nonzero()[:, 1].tolist(), taught.tolist(), strict=True):
        window = [*tokens[0].tolist(), *[0] * 9][column + 2 : column + 7]
        last = max((place for place, token in enumerate(window) if token == 9), default=-1)
        assert row == [place <= last for place in range(5)], column
    before = {name: each.clone() for name, each in lesson.trained.items()}
    lesson(batch, torch.Generator()).backward()
    assert {name.split(".")[0] for name in before} >= {"model", "blocks", "lm_heads"}
    assert all(each.grad is not None for each in lesson.trained.values())


@pytest.mark.slow
def test_what_was_trained_loads_and_shows_texts_without_markers(model: Any, tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"x = {number}\n", "answer": CODE} for number in range(8)]
    data.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    changes = "steps=4 batch=2 texts=8 held_out=0.2 answers.generate=false length=64".split()
    found = train(
        "syntax-aligned-medusa", target=model, data=str(data), output=tmp_path / "out", changes=changes
    )
    tuned = outpace.load(str(found.folder), dtype="float32")
    token = getattr(tuned.target.model.config, KEY)
    assert token == tuned.target.vocab - 1 and tuned.tokenizer.decode([token], skip_special_tokens=True) == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [result] = outpace.generate(
            tuned, CODE, method="syntax-aligned-medusa", head=str(found.folder / "heads"), max_tokens=12
        )
    assert len(result.tokens) == 12 and "whole fragments" in str(result.reference)
