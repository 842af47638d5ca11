"""Retrieval from the texts of requests that have ended: as from one corpus of all of them, in bounded
memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.lookup.past_requests import PastRequests
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.models.table import TableTarget
from outpace.recipes.training_free.rest import Retrieval
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match


def followers(documents: Sequence[Sequence[int]], context: Sequence[int], length: int) -> tuple[int, Counter]:
    """By looking everywhere: how many last tokens occur, and what followed them."""
    for size in range(min(16, len(context)), 1, -1):
        end = tuple(context[-size:])
        found = Counter(
            tuple(text[place + size : place + size + length])
            for text in documents
            for place in range(len(text) - size + 1)
            if tuple(text[place : place + size]) == end
        )
        if found:
            return size, found
    return 0, Counter()


def written(
    past: PastRequests, prompts: Sequence[Sequence[int]], seed: int, tokens: int = 12
) -> list[list[int]]:
    """One batch of requests; their whole texts."""
    model = TableTarget(4, order=1, seed=3)
    parts = Parts(model, Retrieval(past, 8), Match(), Fixed(4))
    row_params = [
        SamplingParams(1.0, max_tokens=tokens - 3 * row, seed=seed + row) for row in range(len(prompts))
    ]
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], row_params, LazyTargetProbs)
    for _ in session.steps():
        pass
    return [[*prompt, *session.request(row).output()] for row, prompt in enumerate(prompts)]


@pytest.mark.parametrize("with_corpus", [False, True])
def test_lookups_equal_a_search_of_all_texts(with_corpus: bool) -> None:
    random = Random(0)
    texts = [[random.randrange(4) for _ in range(40)] for _ in range(3)] if with_corpus else []
    past = PastRequests(SuffixArray.build(texts) if with_corpus else None)
    for turn in range(12):
        texts += written(past, [[0, 1, turn % 4], [2], [3, 1]], seed=10 * turn)
        context = [random.randrange(4) for _ in range(8)]
        size, expected = followers(texts, context, 3)
        matched, rows = past.rows(context, 3, 16, 2)
        assert matched == size
        assert Counter(tuple(token for token in row if token >= 0) for row in rows.tolist()) == expected


def test_the_newest_texts_are_kept() -> None:
    past = PastRequests(max_tokens=400)
    for turn in range(60):
        text = written(past, [[0, 1]], seed=turn)[0]
    assert 200 < len(past) <= 400
    assert past.rows(text[:9], 2, 16, 2)[0] == 9


def test_a_request_is_found_once_it_has_ended() -> None:
    past = PastRequests()
    model = TableTarget(4, order=1, seed=3)
    parts = Parts(model, Retrieval(past, 8), Match(), Fixed(4))
    params = [SamplingParams(1.0, max_tokens=12 - 3 * row, seed=row) for row in range(4)]
    session = Session(parts, [torch.tensor([0, 1, 2])] * 4, params, LazyTargetProbs)
    for _ in session.steps():
        ended = [slot for slot in range(4) if slot not in session.rows]
        assert len(past) == sum(3 + 12 - 3 * row for row in ended)
    assert len(past) == 4 * 3 + 12 + 9 + 6 + 3


def test_sorting_is_shared_by_parts_of_like_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_tokens = 0
    build = SuffixArray.build.__func__

    def counted(cls, documents, *arguments, **options):
        nonlocal sorted_tokens
        texts = [np.asarray(text) for text in documents]
        sorted_tokens += sum(map(len, texts))
        return build(cls, texts, *arguments, **options)

    monkeypatch.setattr(SuffixArray, "build", classmethod(counted))
    past, tokens = PastRequests(), 0
    for turn in range(64):
        tokens += len(written(past, [[0, 1]], seed=turn)[0])
    assert sorted_tokens < 7 * tokens  # log2(64) + 1
    assert len(past._runs) == 1  # every lookup goes through all: of texts of one length as few as bits of 64


def test_a_capacity_of_0_stores_nothing() -> None:
    past = PastRequests(max_tokens=0)
    for turn in range(3):
        written(past, [[0, 1]], seed=turn)
    assert len(past) == 0
    with pytest.raises(ValueError, match="give 0 for none"):
        PastRequests(max_tokens=-1)
