"""Drafters of trees of chosen tokens, which published code verifies by draws of its own for every path."""

from __future__ import annotations

from collections.abc import Callable

from outpace.core.contracts import Drafter
from outpace.drafters.dense import Dense, indexed
from outpace.drafters.past import Past
from outpace.drafters.retrieval import Retrieval
from outpace.drafters.trigrams import Trigrams
from outpace.indexes.suffix_array import SuffixArray
from outpace.indexes.trigrams import TrigramTable
from outpace.models.toy import Table

TEXTS = [[0, 1, 2, 0, 1, 1, 0, 1, 0, 2, 1], [2, 1, 0, 2, 2, 0, 0, 1, 2, 2, 1]]


def retrieved(target: Table) -> list[tuple[str, Callable[[], Drafter]]]:
    """Method and drafter, on a corpus of this model's tokens."""
    texts = [[token % target.vocab for token in text] for text in TEXTS]
    corpus, states = SuffixArray.build(texts), indexed(target, texts)
    return [
        ("rest", lambda: Retrieval(Past(corpus), 6, shortest=1)),
        ("aded", lambda: Trigrams(TrigramTable.build(texts), iterations=20, nodes=6)),
        ("dresd", lambda: Dense(states, keep=4)),
    ]
