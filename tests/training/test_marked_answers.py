"""Answers with marked errors, as labels of their tokens, and the lesson that learns from them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import outpace
from outpace.models.predictors.judge.lesson import JudgeLesson
from outpace.models.predictors.judge.predictor import JudgePredictor
from outpace.training.config import changed
from outpace.training.features import FeatureSource
from outpace.training.marked_answers import RIGHT, SKIPPED, WRONG, marked_answers
from outpace.training.methods import named
from outpace.training.run import train
from outpace.training.texts import DataError, Example, read_prompts
from zoo_training import arithmetic
from zoo_training.marked_answers import rows


def labelled(model: outpace.Model, **row: Any) -> list[tuple[str, str, str]]:
    """The text of the right, the wrong and the skipped tokens of each answer."""
    found = []
    for tokens, labels in marked_answers({"prompt": "x", **row}, model.tokenizer):
        parts = [[t for t, label in zip(tokens, labels, strict=True) if label == kind] for kind in (1, 0, -1)]
        found.append(tuple(model.tokenizer.decode(part) for part in parts))
    return found


def test_tokens_before_at_and_after_an_error(loaded: Any) -> None:
    model = loaded[0]
    assert (RIGHT, WRONG, SKIPPED) == (1, 0, -1)
    assert labelled(model, answer="4 + 5 = 9") == [("4 + 5 = 9", "", "")]
    [(right, wrong, skipped)] = labelled(model, answer="4 + 5 = 8, carry 0", error=[8, 9])
    assert right.startswith("4 + 5") and "8" in wrong and skipped.endswith("carry 0")
    pair = labelled(model, answer="it is 36 or so", wrong="it is 38 or not")
    assert pair[0] == ("it is 36 or so", "", "")
    assert pair[1][0].strip() == "it is 3" and "8" in pair[1][1] and pair[1][2].endswith("not")


def test_rows_that_are_not_marked_are_refused(loaded: Any, tmp_path: Path) -> None:
    model, path = loaded[0], tmp_path / "rows.jsonl"

    def said(row: Any) -> str:
        path.write_text(json.dumps(row))
        with pytest.raises(DataError) as caught:
            read_prompts(str(path), model, 10, 0, marked=True)
        return str(caught.value)

    assert said({"prompt": "a"}).startswith(
        f'{path}, line 1: a row has "prompt" and "answer", and for a wrong'
    )
    given = {"prompt": "a", "answer": "four"}
    for error in ([0, 9], [2, 2], [-1, 2], "four", [0.0, 1.0], [True, 2]):
        assert '"error" is [begin, end], counted in characters of the answer, which has 4' in said(
            given | {"error": error}
        )
    assert "give one" in said(given | {"error": [0, 1], "wrong": "five"})
    for wrong in ("four", "fou", "", 5):
        assert "differs from the answer before it ends" in said(given | {"wrong": wrong})
    with pytest.raises(DataError, match="no answer is marked: give a .jsonl file whose rows have"):
        read_prompts("builtin:code", model, 10, 0, marked=True)


def test_prompts_and_both_answers_of_a_row_are_read(loaded: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    messages = [{"role": "user", "content": "add"}, {"role": "assistant", "content": "a + c"}]
    given = [{"prompt": "add", "answer": "a + b", "wrong": "a - b"}, {"messages": messages, "error": [4, 5]}]
    path.write_text("\n".join(map(json.dumps, given)))
    found = read_prompts(str(path), loaded[0], 10, 0, marked=True)
    assert sorted(WRONG in each.labels for each in found) == [False, True, True]
    assert all(len(each.labels) == len(each.answer or ()) for each in found)


def test_a_token_is_judged_by_the_state_after_it(loaded: Any) -> None:
    target = loaded[0].target
    labels = (SKIPPED, SKIPPED, RIGHT, RIGHT, WRONG, SKIPPED)
    other = Example((4, 6, 8, 10), 1, (SKIPPED, RIGHT, RIGHT, RIGHT))
    texts = [Example((3, 5, 7, 9, 11, 13), 2, labels), other]
    batch = FeatureSource(target, texts, (-1,), Path("none")).batch([0, 1])
    made = JudgeLesson(JudgePredictor(32).to(target.head.weight.dtype), target.head, 6.0)
    states, right = made.labelled(batch)
    assert right.tolist() == [True, True, False, True, True, True]
    hidden: Tensor = batch.hidden[-1]
    assert torch.equal(states, torch.cat((hidden[0, 2:5], hidden[1, 1:4])))
    head: Any = nn.functional.logsigmoid
    log_odds = made.predictor(states)
    losses = [-head(z) if each else -6 * head(-z) for z, each in zip(log_odds, right, strict=True)]
    assert made(batch, torch.Generator()).item() == pytest.approx(
        sum(each.item() for each in losses) / 6, rel=1e-5
    )
    pieces = list(Example(tuple(range(9)), 2, (-1, -1, 1, 1, 1, 1, 0, -1, -1)).pieces(5))
    assert [each.labels for each in pieces] == [(-1, -1, 1, 1, 1), (1, 0, -1, -1)]


def test_texts_without_errors_are_refused(loaded: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    given = [{"prompt": f"add {index}", "answer": f"the sum is {index}"} for index in range(6)]
    path.write_text("\n".join(map(json.dumps, given)))
    with pytest.raises(DataError, match="have no wrong ones: give more marked answers"):
        train("judge-decoding", target=loaded[0], data=str(path), output=tmp_path / "judge")
    with pytest.raises(ValueError, match="judge-decoding trains a judge: leave out draft"):
        named("judge-decoding").check_start("draft", None)
    assert changed(named("judge-decoding").defaults(), []).answers.generate is False


def test_the_zoo_s_answers_are_right_but_for_one_digit() -> None:
    made = list(rows(40, seed=3))
    assert sum("error" in row for row in made) == 20
    for row in made:
        prompt, answer = row["messages"][0]["content"], row["answer"]
        if "error" not in row:
            assert arithmetic.check(prompt, answer)
            continue
        begin, end = row["error"]
        right = arithmetic.solve(prompt)
        assert end == begin + 1 and re.fullmatch(r"\d", answer[begin]) and answer[begin] != right[begin]
        assert answer[:begin] + right[begin] + answer[end:] == right
