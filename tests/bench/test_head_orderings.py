"""Orderings of draft heads: ratios of acceptance lengths, paired by prompt and seed."""

from __future__ import annotations

from benchmarks.head_orderings import BEGUN_AS, DRAFTED, ORDERINGS, Length, learned_as, ordering, to_tables
from outpace.training.methods import methods


def lengths(name: str, values: dict[str, tuple[float, float]], temperature: float = 0.0) -> list[Length]:
    return [
        Length(name, seed, prompt, temperature, value)
        for prompt, each in values.items()
        for seed, value in enumerate(each)
    ]


def test_lengths_are_compared_by_prompt_and_seed() -> None:
    eagle = {"a": (2.0, 4.0), "b": (3.0, 3.0), "c": (8.0, 2.0)}
    medusa = {
        "a": (1.0, 2.0),
        "b": (2.0, 2.0),
        "c": (4.0, 2.0),
        "d": (1.0, 1.0),
    }  # d was not drafted by eagle
    found = [*lengths("eagle", eagle), *lengths("medusa", medusa)]
    found += [*lengths("eagle", medusa, 1.0), *lengths("medusa", medusa, 1.0)]
    ratio = ordering(found, "eagle", "medusa", 0.0)
    assert ratio.prompts == 3 and ratio.ratio.median == 1.5  # of 2, 1.5 and the median of 2 and 1
    assert ratio.ratio.low == 1.5 and ratio.ratio.high == 2.0
    assert ordering(found, "eagle", "medusa", 1.0).ratio.median == 1.0
    table, ratios = to_tables(found, [ratio])
    assert table.rows[0][:2] == ("eagle", "3.67") and ratios.rows == (
        ("eagle over medusa", "0", "1.500", "1.500 to 2.000"),
    )


def test_every_ordering_is_of_heads_that_can_be_trained() -> None:
    assert {name for pair in ORDERINGS for name in pair} == set(DRAFTED)
    assert {learned_as(head) for _, head, _ in DRAFTED.values() if head} <= set(methods())
    for further, first in BEGUN_AS.values():
        assert {further, first} <= set(methods())
