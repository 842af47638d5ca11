"""Counts of tokens: kept are the most frequent and the special ones; files without counts are refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from outpace.indexes import store
from outpace.indexes.token_counts import TokenCounts

VOCAB = 40
# tokens 0 to 29, the lower the more frequent, with ties; 30 to 39 do not occur
TEXTS = [[int(30 * Random(seed).random() ** 2) for seed in range(50 * n, 50 * n + 50)] for n in range(6)]


def brute_force(size: int, special: list[int]) -> set[int]:
    """The top counts; each special token that is not among them takes the place of the rarest."""
    counts = Counter(token for text in TEXTS for token in text)
    kept = sorted(range(VOCAB), key=lambda token: (-counts[token], token))[:size]
    for token in special:
        if token not in kept:
            rarest = max(
                (each for each in kept if each not in special), key=lambda each: (-counts[each], each)
            )
            kept[kept.index(rarest)] = token
    return set(kept)


@pytest.mark.parametrize("special", [[], [39], [2, 35, 31], [0, 1]])
@pytest.mark.parametrize("size", [3, 7, 25, 33, VOCAB])
def test_kept_are_the_top_counts_and_the_special_tokens(size: int, special: list[int]) -> None:
    for counts, more in ((TokenCounts.build(TEXTS, special), []), (TokenCounts.build(TEXTS), special)):
        kept = counts.kept(size, VOCAB, more)
        assert len(set(kept)) == len(kept) == size and set(special) <= set(kept)
        assert set(kept) == brute_force(size, special)
    assert TokenCounts.build(TEXTS).kept(5, VOCAB) == TokenCounts.build(TEXTS).ids[:5].tolist()


def test_without_counts_the_lowest_ids_are_kept() -> None:
    assert TokenCounts.by_id().kept(4, VOCAB, [30]) == [0, 1, 2, 30]


@pytest.mark.parametrize(
    ("size", "special", "words"),
    [
        (0, [], "size is 0: use at least 1$"),
        (2, [5, 6, 7], "size is 2: use at least 3, the number of special tokens"),
    ],
)
def test_a_size_without_room_is_refused(size: int, special: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TokenCounts.build(TEXTS, special).kept(size, VOCAB)


def test_counting_is_reported() -> None:
    seen: list[int] = []
    counts = TokenCounts.build([[3, 3], [], [1]], on_progress=seen.append)
    assert seen == [2, 0, 1] and counts.ids.tolist() == [3, 1] and counts.counts.tolist() == [2, 1]
    assert counts.metadata == {"tokens": 3, "different_tokens": 2}


def array(*values: int, dtype: type = np.int32) -> np.ndarray:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("ids", "counts", "words"),
    [
        ((), (), "it counts no tokens"),
        ((4, 4), (2, 1), "damaged"),
        ((4, -1), (2, 1), "damaged"),
        ((4, 5), (1, 2), "damaged"),
        ((5, 4), (1, 1), "damaged"),  # of equal counts the lower id is first
        ((4, 5), (1, 0), "damaged"),
        ((4, 5), (1,), "damaged"),
    ],
)
def test_files_that_rank_no_tokens_are_refused(
    ids: tuple[int, ...], counts: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    wrong = TokenCounts(array(*ids), array(*counts, dtype=np.int64), array())
    store.save(wrong, tmp_path / "my.counts")
    with pytest.raises(ValueError, match=f"my.counts: .*{words}.*build it again"):
        store.load(TokenCounts, tmp_path / "my.counts")
