"""What is recommended on workloads made for copying, for remembering and for neither.

Time is not the machine's: every forward is charged its price, and drafting from text is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outpace.bench.measure.line_up import method_contenders
from outpace.bench.measure.measurement import Measurement
from outpace.bench.measure.recommend import Recommendation
from outpace.bench.measure.run import EncodedPrompt
from outpace.bench.report.tables import tables
from outpace.core.contracts import NOTHING, Scores, TokenTree
from outpace.core.sampling_params import SamplingParams
from outpace.indexes import store
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.models.table import TableCache, TableTarget
from outpace.recipes import parse_methods
from outpace.recipes._option_kinds import FunctionOpener

VOCAB, END_OF_PROMPT, LENGTH = 300, 0, 60
LINE_UP = "prompt-lookup,suffix-decoding,rest,speculative-sampling"
Book = Mapping[tuple[int, ...], Sequence[int]]  # prompt -> answer


@dataclass
class Clock:
    now: int = 0  # whole numbers: what costs the same takes the same time

    def __call__(self) -> float:
        return self.now


class Charged(TableTarget):
    """A target with the logits `distribution` of the text so far; each forward advances the clock."""

    def __init__(
        self, target_probs: Callable[[Sequence[int]], Tensor], clock: Clock, forward: int, node: int
    ) -> None:
        super().__init__(VOCAB, order=1)
        self._distribution, self._clock, self._forward, self._node = target_probs, clock, forward, node

    def _after(self, state: Any, token: int) -> Any:  # the text itself
        return (*(state or ()), token)

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Any,
        want: Any = NOTHING,
        *,
        gap: Any = None,
        carry: Any = None,
    ) -> Scores:
        assert isinstance(cache, TableCache)
        first = cache.extend(tree, slots, gap, self)
        texts: Any = cache.states[first:]
        self._clock.now += self._forward + self._node * (len(tree) - first)
        return Scores(first, torch.stack([self._distribution(text) for text in texts]))


def certain(token: int) -> Tensor:
    return 30.0 * torch.eye(VOCAB)[token]


def reciting(book: Book) -> Callable[[Sequence[int]], Tensor]:
    """Logits of the answers of a book, and of arbitrary tokens for other texts."""

    def distribution(text: Sequence[int]) -> Tensor:
        start = text.index(END_OF_PROMPT) + 1
        answer, written = book[tuple(text[:start])], list(text[start:])
        right = written == list(answer[: len(written)]) and len(written) < len(answer)
        return certain(answer[len(written)] if right else 1 + 7 * len(text) % (VOCAB - 1))

    return distribution


def measured(
    book: Book, methods: str = LINE_UP, *, distribution: Any = None, temperature: float = 0.0, **settings: int
) -> Measurement:
    """Measurement of all methods on the book's prompts; the draft model drafts tokens unrelated to the
    book."""
    clock = Clock()
    target = Charged(distribution or reciting(book), clock, 100, 1)
    draft = Charged(lambda text: certain(1 + 11 * len(text) % (VOCAB - 1)), clock, 20, 1)
    found, choices = method_contenders(
        parse_methods(methods), target, "small", FunctionOpener(lambda name: draft)
    )
    measurement = Measurement(
        contenders=[replace(engine, clock=clock) for engine in found],
        cases=[EncodedPrompt(f"p{place}", "made", torch.tensor(prompt)) for place, prompt in enumerate(book)],
        sampling=SamplingParams(max_tokens=LENGTH),
        temperatures=[temperature],
        **{"rounds": 2, "batch": 1, "seed": 0, "choices": choices, "provenance": {}, **settings},
    )
    measurement.measure()
    assert measurement.error is None and measurement.complete
    return measurement


def picked(measurement: Measurement) -> Recommendation:
    return measurement.recommendation(measurement.rows())


def words(random: Random, length: int) -> list[int]:
    return random.sample(range(1, VOCAB), length)  # no word twice: a text does not repeat itself


def edits() -> Book:
    """Answers are their prompt with every fifteenth word changed; no two prompts are alike."""
    book: dict[tuple[int, ...], list[int]] = {}
    for number in range(4):
        random = Random(number)
        document = words(random, LENGTH)
        edited = [
            random.randrange(1, VOCAB) if place % 15 == 14 else word for place, word in enumerate(document)
        ]
        book[*document, END_OF_PROMPT] = edited
    return book


def questions() -> Book:
    """Answers have nothing of their prompts, nor of one another."""
    book: dict[tuple[int, ...], list[int]] = {}
    for number in range(4):
        written = words(Random(number), 10 + LENGTH)
        book[*written[:10], END_OF_PROMPT] = written[10:]
    return book


def speedups(measurement: Measurement) -> dict[str, float]:
    return {row.contender: row.speedup.median for row in measurement.rows() if row.selection == "all"}


@pytest.mark.slow
def test_copying_from_the_prompt_is_recommended_for_edits() -> None:
    measurement = measured(edits())
    assert picked(measurement).method == "prompt-lookup"
    gains = speedups(measurement)
    assert gains["prompt-lookup"] > gains["suffix-decoding"] > 2  # whose drafts are as long as what matched
    assert gains["rest"] == 1 > gains["speculative-sampling"]


@pytest.mark.slow
def test_remembering_is_recommended_where_the_same_questions_come_again() -> None:
    measurement = measured(questions(), repeat=3)
    advice = picked(measurement)
    assert advice.method == "rest" and "on these prompts, each decoded 3 times (" in advice.reason
    gains = speedups(measurement)
    assert (
        gains["rest"] > gains["suffix-decoding"] > 2
        and gains["prompt-lookup"] == 1 > gains["speculative-sampling"]
    )
    assert measurement.advice(measurement.rows())["workload"]["repeat"] == 3


@pytest.mark.slow
def test_an_index_of_past_answers_is_recommended(tmp_path: Path) -> None:
    book, past = questions(), str(tmp_path / "past.index")
    store.save(SuffixArray.build([np.array(answer, np.int32) for answer in book.values()]), past)
    advice = picked(measured(book, f"prompt-lookup,rest,rest:index={past}"))
    assert (advice.method, advice.options) == ("rest", {"index": past})


@pytest.mark.slow
def test_rounds_do_not_make_questions_come_again() -> None:
    measurement = measured(questions(), rounds=3)
    assert picked(measurement).method == "autoregressive"
    assert max(speedups(measurement).values()) == speedups(measurement)["rest"] == 1


@pytest.mark.slow
def test_plain_decoding_is_recommended_for_text_at_random() -> None:
    measurement = measured(
        questions(), distribution=lambda text: torch.zeros(VOCAB), temperature=1.0, repeat=2
    )
    advice = picked(measurement)
    assert advice.method == "autoregressive" and advice.reason.startswith(
        "do not speculate: the speedup of the fastest method"
    )
    assert max(speedups(measurement).values()) < 1.01 and speedups(measurement)["speculative-sampling"] < 0.6


@pytest.mark.slow
def test_plain_decoding_is_recommended_where_the_draft_model_knows_nothing() -> None:
    assert picked(measured(edits(), "speculative-sampling,rest")).method == "autoregressive"


@pytest.mark.slow
def test_a_repeated_prompt_counts_once_and_halves_show_the_gain_of_learning() -> None:
    measurement = measured(questions(), "rest,prompt-lookup", repeat=2)
    rows = {row.contender: row for row in measurement.rows() if row.selection == "all"}
    assert {row.prompts for row in rows.values()} == {4} and rows["rest"].runs == 4 * 2 * 2
    # both times together: an interval over prompts, not over first and second
    assert rows["rest"].speedup.low > 1.5
    first, second = rows["rest"].halves or pytest.fail("no halves")
    assert (first.mean_acceptance_length, first.speedup) == (1, 1) and second.speedup > 5
    assert [half.mean_acceptance_length for half in rows["prompt-lookup"].halves or ()] == [1, 1]
    shown = [table for table in tables(list(rows.values()), "all") if "half of the prompts" in table.title]
    assert [table.columns[1:3] for table in shown] == [
        ("mean acceptance length, first half", "mean acceptance length, second half")
    ]
    assert not [t for t in tables(measured(questions(), "rest").rows()) if "half of the prompts" in t.title]
