"""Correct lookup drafters (REST, ADED, DReSD) on a small corpus; `catalogue` combines them with the mutant
verifier `PerPath`, which samples target tokens separately for each path, as published code does."""

from __future__ import annotations

from collections.abc import Callable

from outpace.core.contracts import Drafter
from outpace.drafters.lookup.past_requests import PastRequests
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.models.table import TableTarget
from outpace.recipes.training_free.aded.recipe import Trigrams
from outpace.recipes.training_free.aded.trigram_table import TrigramTable
from outpace.recipes.training_free.dresd.recipe import HiddenStateSearch, indexed
from outpace.recipes.training_free.rest import Retrieval

TEXTS = [[0, 1, 2, 0, 1, 1, 0, 1, 0, 2, 1], [2, 1, 0, 2, 2, 0, 0, 1, 2, 2, 1]]


def retrieved(target: TableTarget) -> list[tuple[str, Callable[[], Drafter]]]:
    """(name of the recipe, function that returns its drafter) on a small corpus of this model's token ids."""
    texts = [[token % target.vocab for token in text] for text in TEXTS]
    corpus, states = SuffixArray.build(texts), indexed(target, texts)
    return [
        ("rest", lambda: Retrieval(PastRequests(corpus), 6, min_ngram=1)),
        ("aded", lambda: Trigrams(TrigramTable.build(texts), iterations=20, nodes=6)),
        ("dresd", lambda: HiddenStateSearch(states, max_paths=4)),
    ]
