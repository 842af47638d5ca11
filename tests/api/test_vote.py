"""Votes of several samples: independent branches on one prompt, deadlines and early ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

import outpace
from outpace.api import vote as public
from outpace.api.branch_search import Setting
from outpace.api.vote import Vote, vote
from outpace.api.vote_plan import Problem, plan_votes

PROMPT = "def add(a, b):\n    return a + b\n"
WORD = r"\w"


class Script:
    """A run whose rows end in given steps with given texts, and which counts its steps."""

    def __init__(self, rows: Sequence[tuple[int, str]]) -> None:
        self.rows, self.num_steps, self.closed = rows, 0, False
        self.begun = len(rows)

    def steps(self) -> Iterator[list[Any]]:
        try:
            for step in range(1, max(end for end, _ in self.rows) + 1):
                self.num_steps = step
                yield [SimpleNamespace(row=row) for row, (end, _) in enumerate(self.rows) if end >= step]
        finally:
            self.closed = True

    def result(self, row: int) -> Any:
        end, text = self.rows[row]
        return SimpleNamespace(text=text, finish_reason="stop" if end <= self.num_steps else None)


def scripted(
    monkeypatch: pytest.MonkeyPatch, rows: Sequence[tuple[int, str]], clock: Any = None, **given: Any
) -> tuple[Vote, Script]:
    run = Script(rows)
    request = SimpleNamespace(
        prompts=[[0]] * len(rows), model=SimpleNamespace(tokenizer=1), decode=lambda share_prompt: run
    )
    monkeypatch.setattr(import_module("outpace.api.vote"), "prepare", lambda *args, **keywords: request)
    ticks = iter(clock or range(1000))
    found = vote("", "", samples=len(rows), answer=r"\d+", clock=lambda: float(next(ticks)), **given)
    assert run.closed
    return found, run


def test_samples_vote_when_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    found, run = scripted(monkeypatch, [(5, "it is 7"), (2, "8"), (3, "no idea"), (4, "7"), (5, "8")])
    assert found.votes == {"8": 2, "7": 2} and found.answer == "8"  # first voted for in step 2
    assert found.stopped == "complete" and run.num_steps == found.num_steps == 5
    assert [each.answer for each in found.branches] == ["7", "8", None, "7", "8"]
    assert [each.seconds for each in found.branches] == [5, 2, 3, 4, 5]


def test_a_vote_ends_when_the_others_cannot_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found, run = scripted(monkeypatch, [(1, "7"), (9, "8"), (2, "7"), (9, "8"), (3, "7")])
    assert (found.answer, found.stopped, run.num_steps) == ("7", "decided", 3)
    assert [each.seconds for each in found.branches] == [1, None, 2, None, 3]


@pytest.mark.parametrize(("deadline", "answer", "num_steps"), [(1.5, None, 2), (2, "8", 3), (3.5, "7", 4)])
def test_samples_that_end_after_the_deadline_do_not_vote(
    monkeypatch: pytest.MonkeyPatch, deadline: float, answer: str | None, num_steps: int
) -> None:
    rows = [(2, "8"), (3, "7"), (3, "7"), (9, "8"), (4, "8"), (9, "8")]
    found, run = scripted(monkeypatch, rows, deadline=deadline)
    assert (found.answer, found.stopped, run.num_steps) == (answer, "deadline", num_steps)


def test_a_clock_that_goes_backwards_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    backwards = [100, 101, 50, -1e9, 102, 99, 103, 0]
    found, _ = scripted(monkeypatch, [(6, "7"), (2, "8"), (6, "8")], backwards, deadline=2.5)
    assert found.stopped == "deadline" and found.seconds == 3
    assert found.answer == "8" and found.branches[1].seconds == 1


@pytest.fixture(scope="module")
def voted(loaded) -> Vote:
    return vote(loaded[0], PROMPT, samples=4, answer=WORD, seed=5, max_tokens=20, draft=loaded[1])


def test_samples_have_different_seeds_and_texts(voted: Vote) -> None:
    seeds = [each.result.statistics.seed for each in voted.branches]
    assert len(set(seeds)) == 4 and len({tuple(each.result.tokens) for each in voted.branches}) == 4


def test_each_sample_is_the_one_that_its_seed_gives_alone(loaded) -> None:
    """With matching, which draws each token by the seed and its position, whatever the drafts are."""
    found = vote(loaded[0], PROMPT, "multi-sample", samples=4, answer=WORD, seed=5, max_tokens=20)
    for each in found.branches:
        seed = each.result.statistics.seed
        (alone,) = outpace.generate(
            loaded[0], PROMPT, "autoregressive", seed=seed, max_tokens=20, temperature=1.0
        )
        count = len(each.result.tokens)
        assert each.result.tokens == alone.tokens[:count] and count


def test_the_prompt_is_read_once(voted: Vote, loaded) -> None:
    cached = [each.result.statistics.num_cached_tokens for each in voted.branches]
    length = voted.branches[0].result.statistics.num_prompt_tokens
    assert cached == [0, *[length - 1] * 3]
    (first, second) = vote(
        loaded[0], PROMPT, samples=2, answer=WORD, seed=5, max_tokens=1
    ).branches  # the first has ended before the second begins
    assert len(first.result.tokens) == len(second.result.tokens) == 1


def test_a_deadline_on_a_real_run(loaded) -> None:
    ticks = iter(range(100))
    found = vote(
        loaded[0],
        PROMPT,
        samples=3,
        answer=WORD,
        max_tokens=60,
        ignore_eos=True,
        deadline=3,
        clock=lambda: float(next(ticks)),
    )
    assert found.stopped == "deadline" and found.num_steps == 4
    assert found.answer is None and all(each.result.finish_reason is None for each in found.branches)
    assert found.as_dict()["branches"][0]["answer"] is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"samples": 0}, "use at least 1"),
        ({"deadline": 0.0}, "use a positive number"),
        ({"deadline": float("nan")}, "use a positive number"),
        ({"answer": "("}, "no regular expression"),
        ({"n": 2}, "a vote decides about n itself"),
        ({"temperature": 0.0}, "at temperature 0 all samples are the same"),
        ({"prompt": ["a", "b"]}, "about one prompt"),
    ],
)
def test_unsuited_arguments_are_refused(loaded, given: dict[str, Any], sentence: str) -> None:
    prompt = given.pop("prompt", PROMPT)
    with pytest.raises(ValueError, match=sentence):
        vote(loaded[0], prompt, **given)


def test_a_plan_measures_each_setting_on_all_problems(loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, Any, Any]] = []

    def recorded(model: Any, prompt: str, method: Any, *, samples: int, seed: int, **given: Any) -> Any:
        depth = given.get("depth", 0)
        calls.append((method.name, samples, depth, given["deadline"]))
        tokens = SimpleNamespace(result=SimpleNamespace(tokens=[0] * 10))
        right = prompt == "one" or depth == 1
        return SimpleNamespace(
            answer="1" if right else "2", branches=[tokens] * samples, num_steps=5, seconds=2.0
        )

    monkeypatch.setattr("outpace.api.vote_plan.vote", recorded)
    problems = [Problem("one", "1"), Problem("two", "1")]
    made = plan_votes(loaded[0], problems, deadline=3.0, max_samples=8, max_depth=1, options={"max_ngram": 2})
    best = made.search.best
    assert best == Setting(1, 1) and made.search.tried[best].accuracy == 1.0
    first = next(iter(made.search.tried.values()))
    assert (first.accuracy, first.tokens_per_second, first.step_seconds, first.num_tokens) == (
        0.5,
        5,
        0.4,
        10,
    )
    assert len(calls) == 3 * len(made.search.tried)  # a warm-up without a deadline, and two problems
    assert [each[3] for each in calls[:3]] == [None, 3.0, 3.0]
    assert {(name, depth > 0) for name, _, depth, _ in calls} == {
        ("autoregressive", False),
        ("latency-aware-tts", True),
    }
    found = made.as_dict()
    assert found["method"] == "latency-aware-tts" and found["samples"] == 1
    assert found["options"] == {"measured": False, "max_ngram": 2, "depth": 1}
    assert len(found["tried"]) == len(made.search.tried)


def test_plans_that_cannot_be_made_are_refused(loaded) -> None:
    with pytest.raises(ValueError, match="no problems"):
        plan_votes(loaded[0], [], deadline=1.0)
    with pytest.raises(ValueError, match="token-recycling has no option depth"):
        plan_votes(loaded[0], [Problem("a", "b")], "token-recycling", deadline=1.0)


def test_it_is_public() -> None:
    assert outpace.vote is public is vote and outpace.Vote is Vote


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"samples": "3"}, "samples is '3'; use a whole number"),
        ({"deadline": "3"}, "the deadline is '3'; use a positive number of seconds"),
    ],
)
def test_values_of_a_wrong_type_are_refused(loaded, given, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        outpace.vote(loaded[0], "1 + 1 =", **given)
