"""Generated tasks: checks accept right answers only, and held-out tasks do not occur in training."""

from __future__ import annotations

import random
import re

import pytest

from zoo_training import arithmetic, tasks
from zoo_training.words import ADJECTIVES, NAMES, NOUNS, PARTS, Words, is_held_out


@pytest.mark.parametrize("kind", tasks.KINDS)
@pytest.mark.parametrize("held_out", [False, True])
def test_check_accepts_the_right_answer(kind: str, held_out: bool) -> None:
    pick = random.Random(1)
    for _ in range(200):
        task = tasks.make(kind, pick, held_out=held_out)
        assert task.check(task.answer), task
        assert tasks.check(kind, task.turns, task.answer + "\n")


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_check_refuses_other_answers(kind: str) -> None:
    for task in tasks.held_out(kind, 200):
        assert not task.check("")
        assert not task.check(task.answer + " 7777")
        # a full stop behind a sum may be missing
        assert not task.check(task.answer[:-2]) or kind == "arithmetic"
    first, *others = tasks.held_out(kind, 30)
    assert not any(first.check(other.answer) for other in others if other.answer != first.answer)


def test_arithmetic_is_right_in_every_step() -> None:
    for task in tasks.held_out("arithmetic", 300):
        for left, sign, right, result in re.findall(r"(?m)^(\d+) ([-+*]) (\d+) = (\d+)", task.answer):
            a, b = int(left), int(right)
            assert int(result) == {"+": a + b, "-": a - b, "*": a * b}[sign]
        assert task.check(task.answer.splitlines()[-1])


def test_an_edit_changes_something_and_copies_most() -> None:
    for task in tasks.held_out("edit", 200):
        text = task.prompt.split("\n", 1)[1]
        assert set(task.answer.split()) & set(text.split())
        assert len(task.answer) > 0.4 * len(text)


def content_words(task: tasks.Task) -> set[str]:
    """Words of the fixed vocabularies in a task, whole or as a part of an identifier."""
    known = {word.lower() for word in [*NOUNS, *NAMES, *ADJECTIVES, *PARTS]}
    template = set("value list line number count red text table record order name will letter".split())
    return {word.lower() for turn in task.turns for word in re.findall(r"[A-Za-z]+", turn)} & known - template


@pytest.mark.parametrize("kind", ["edit", "chat"])
def test_training_and_held_out_share_no_content_word(kind: str) -> None:
    pick = random.Random(2)
    trained = set[str]().union(*(content_words(tasks.make(kind, pick)) for _ in range(400)))
    kept = set[str]().union(*(content_words(task) for task in tasks.held_out(kind, 400)))
    assert trained and kept and not trained & kept


def test_training_and_held_out_share_no_sum() -> None:
    pick = random.Random(3)
    for held_out in (False, True):
        for _ in range(500):
            prompt = tasks.make("arithmetic", pick, held_out=held_out).prompt
            assert arithmetic.is_held_out(tuple(map(int, re.findall(r"\d+", prompt)))) == held_out


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_no_held_out_task_occurs_in_training(kind: str) -> None:
    pick = random.Random(4)
    trained = {tasks.make(kind, pick).turns for _ in range(3000)}
    assert not trained & {task.turns for task in tasks.held_out(kind, 500)}


def test_every_list_has_words_on_both_sides() -> None:
    for words in (NOUNS, NAMES, ADJECTIVES, PARTS):
        held_out = sum(map(is_held_out, words))
        assert 5 <= held_out <= len(words) / 2
    assert is_held_out(Words(random.Random(0), held_out=True).coined())


def test_held_out_tasks_are_fixed_and_differ() -> None:
    for kind in tasks.KINDS:
        found = tasks.held_out(kind, 60)
        assert found[:20] == tasks.held_out(kind, 20)
        assert len({task.turns for task in found}) == 60
        assert found[0].messages[-1] == {"role": "user", "content": found[0].prompt}


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="poem.*arithmetic, edit, chat"):
        tasks.make("poem", random.Random(0))
