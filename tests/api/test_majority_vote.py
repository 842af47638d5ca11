"""Majority votes: the leader, ties, and when nothing can change the result any more."""

from __future__ import annotations

from itertools import product

import pytest

from outpace.api.majority_vote import NUMBER, Tally, answer_in, answer_pattern

ANSWERS = ("a", "b", "c", None)


def tally(answers: tuple[str | None, ...], num_branches: int) -> Tally:
    made = Tally(num_branches)
    for answer in answers:
        made.add(answer)
    return made


def test_of_answers_with_as_many_votes_the_earliest_leads() -> None:
    assert tally((None, "b", "a", "a", "b"), 5).leader == "b"
    assert tally(("b", "a", "a"), 5).leader == "a"
    assert tally(("b", "a", "a", "c"), 4).votes == {"a": 2, "b": 1, "c": 1}
    assert tally((None, None), 2).leader is None
    with pytest.raises(ValueError, match="all branches have voted"):
        tally(("a",), 1).add("a")


@pytest.mark.parametrize("num_branches", [1, 2, 3, 4, 5])
def test_it_is_decided_exactly_if_no_further_votes_change_the_leader(num_branches: int) -> None:
    for count in range(num_branches + 1):
        for answers in product(ANSWERS[:3] if num_branches == 5 else ANSWERS, repeat=count):
            made = tally(answers, num_branches)
            rest = product((*ANSWERS, "d"), repeat=num_branches - count)
            leaders = {tally((*answers, *more), num_branches).leader for more in rest}
            assert made.decided == (len(leaders) == 1), answers


@pytest.mark.parametrize(
    ("pattern", "text", "answer"),
    [
        (NUMBER, "30 * 6 = 180\n34 * 6 = -204.5.", "-204.5"),
        (NUMBER, "none", None),
        (r"answer is (\w+)", "the answer is 3, no, the answer is four", "four"),
        (r"answer is (\w+)?", "the answer is 3, or the answer is ", None),
        (r"\n(.*)$", "one\n  two ", "two"),
        (r"x*", "aaa", None),
    ],
)
def test_the_last_match_is_the_answer(pattern: str, text: str, answer: str | None) -> None:
    assert answer_in(text, answer_pattern(pattern)) == answer


def test_an_invalid_expression_is_refused() -> None:
    with pytest.raises(ValueError, match="is no regular expression"):
        answer_pattern("(")
