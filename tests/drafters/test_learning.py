"""Methods that learn from requests do so as soon as one ends, also within a running session, in bounded
memory."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from sys import getsizeof
from typing import Any

import pytest
import torch

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.recipes import get
from outpace.sampling.target_probs import LazyTargetProbs
from tests.tiers import slow

VOCAB = 120
LEARNERS = ["suffix-decoding", "rest", "aded", "rasd", "reader"]


def counting(increment: int = 1) -> TableTarget:
    """A model whose next token is its last one plus `increment`: no text repeats itself within `VOCAB`
    tokens."""
    model = TableTarget(VOCAB, order=1)
    model.logits = torch.zeros_like(model.logits)
    for state in range(2 * VOCAB):
        model.logits[state, (state % VOCAB + increment) % VOCAB] = 30.0
    return model


def build(method: str, **options: Any) -> Parts:
    if "draft" in get(method).options:
        # the right token has rank 6: in no tree of the model's four most probable, but among the ten that
        # rasd keeps
        options["draft"] = draft = counting(7)
        for increment, weight in ((8, 0.9), (9, 0.8), (10, 0.7), (11, 0.6), (1, 0.5)):
            draft.logits += weight * counting(increment).logits
    return get(method).build(counting(), **options)


def start(parts: Parts, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> Session:
    params = [SamplingParams(max_tokens=length) for length in lengths]
    return Session(parts, [torch.tensor(prompt) for prompt in prompts], params, LazyTargetProbs)


@pytest.mark.parametrize("method", LEARNERS)
def test_a_request_that_ends_helps_those_still_running(method: str) -> None:
    """Row 1 reaches the text of row 0 after row 0 has ended: from there its drafts are accepted."""
    parts = build(method)
    assert parts.drafter.learns_across_rows and not parts.drafter.drafts_across_rows
    session = start(parts, [[3], [99]], [42, 80])
    generated: list[list[int]] = []
    with_row_0 = 0
    for step in session.steps():
        if 1 in step.ctx.slots:
            generated.append(step.generated[step.ctx.slots.index(1)])
            with_row_0 += 0 in step.ctx.slots
    assert with_row_0 == 42 and all(len(tokens) == 1 for tokens in generated[:with_row_0])
    assert max(map(len, generated[with_row_0:])) > 2
    assert [token for tokens in generated for token in tokens] == [(100 + n) % VOCAB for n in range(80)]


@pytest.mark.parametrize("method", LEARNERS)
def test_texts_of_an_interrupted_session_are_not_learnt(method: str) -> None:
    parts = build(method)
    steps = start(parts, [[3], [99]], [60, 60]).steps()
    for _ in range(20):
        next(steps)
    steps.close()
    tokens: list[int] = []
    again = start(parts, [[1, 3]], [15]).steps()
    generated = [step.generated[0] for step in again if step.scores.logits is not None]
    for each in generated:
        tokens += each
    assert tokens == list(range(4, 19))
    # aded learns from the steps of a request, the others from its text when it finishes
    assert (len(generated) < 15) == (method == "aded")


def memory(value: object) -> int:
    """Bytes of everything that this object refers to, models and code aside."""
    seen: set[int] = set()
    todo, total = [value], 0
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type | TableTarget) or callable(each):
            continue
        seen.add(id(each))
        total += each.untyped_storage().nbytes() if isinstance(each, torch.Tensor) else getsizeof(each)
        todo += gc.get_referents(each)
    return total


@pytest.mark.parametrize(
    ("method", "options"),
    [
        slow("suffix-decoding", {"max_cached_tokens": 300}),
        ("rest", {"max_cached_tokens": 300}),
        slow("aded", {"iterations": 5}),
        slow("rasd", {"max_cached_tokens": 300}),
        slow("reader", {"max_cached_tokens": 300}),
        slow("multi-sample", {}),
        ("token-recycling", {}),
        slow("speculative-sampling", {}),
    ],
)
def test_memory_does_not_grow_with_the_number_of_requests(method: str, options: dict[str, Any]) -> None:
    """200 requests, ten at a time, in sessions in which requests end at different steps."""
    parts = build(method, **options)
    sizes: list[int] = []
    for batch in range(20):
        prompts: list[list[int]] = [[(7 * batch + 11 * row) % VOCAB, row] for row in range(10)]
        for _ in start(parts, prompts, [5 + 3 * row for row in range(10)]).steps():
            pass
        sizes.append(memory(parts.drafter))
    assert max(sizes[10:]) <= 1.1 * max(sizes[:10])
