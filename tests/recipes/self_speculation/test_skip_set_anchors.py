"""Anchors: held-out prompts are of their domain, strange ones of none; damaged files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outpace.indexes import store
from outpace.models.skip_set import SkipSet
from outpace.recipes.self_speculation.knn_ssd.skip_set_anchors import ANCHORS, SkipSetAnchors

RNG = np.random.default_rng(0)
SETS = [SkipSet.of_layers([1, 3]), SkipSet(frozenset({2}), frozenset({0})), SkipSet.of_layers([0])]
# the prompts of a domain lie around a few places
PLACES = RNG.normal(size=(3, 2, 16))


def prompts(domain: int, num: int) -> np.ndarray:
    return PLACES[domain, RNG.integers(2, size=num)] + 0.3 * RNG.normal(size=(num, 16))


ANCHORED = SkipSetAnchors.build([prompts(domain, 60) for domain in range(3)], SETS, 4)


def test_held_out_prompts_are_of_their_domain() -> None:
    right = [ANCHORED.domain(state) == domain for domain in range(3) for state in prompts(domain, 60)]
    assert sum(right) / len(right) > 0.9
    assert [ANCHORED.skip_set(domain) for domain in range(3)] == SETS


def test_a_prompt_far_from_all_anchors_is_of_no_domain() -> None:
    assert ANCHORED.domain(-PLACES.mean((0, 1))) is None
    assert all(ANCHORED.domain(5 * state) == ANCHORED.domain(state) for state in prompts(0, 5))  # directions


def test_a_domain_has_at_most_ten_anchors_of_several_prompts() -> None:
    assert ANCHORED.metadata == {"domains": 3, "anchors": 3 * ANCHORS, "layers": 4}
    few = SkipSetAnchors.build([prompts(0, 9), prompts(1, 1)], SETS[:2], 4)
    assert few.domains.tolist() == [0, 0, 1]
    assert np.linalg.norm(few.centers, axis=1) == pytest.approx(1)


def test_a_single_prompt_is_found_again() -> None:
    state = prompts(0, 1)
    assert SkipSetAnchors.build([state], SETS[:1], 4).domain(state[0]) == 0


def test_a_domain_without_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="domain 1 has no prompts"):
        SkipSetAnchors.build([prompts(0, 3), np.zeros((0, 16))], SETS[:2], 4)


def test_files(tmp_path: Path) -> None:
    store.save(ANCHORED, tmp_path / "my.sets")
    again = store.load(SkipSetAnchors, tmp_path / "my.sets")
    for name, array in ANCHORED.arrays.items():
        assert np.array_equal(array, again.arrays[name])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("centers", np.zeros((0, 16), np.float32), "it has no anchors|damaged"),
        ("domains", np.full(3 * ANCHORS, 3, np.int32), "damaged"),
        ("reach", np.full(3, np.nan, np.float32), "damaged"),
        ("skipped", np.ones((3, 2, 4), np.int32), "damaged"),  # nothing is left of the model
        ("skipped", np.full((3, 2, 4), 2, np.int32), "damaged"),
    ],
)
def test_damaged_files_are_refused(name: str, value: np.ndarray, words: str, tmp_path: Path) -> None:
    arrays = ANCHORED.arrays | {name: value}
    store.save(SkipSetAnchors(**arrays), tmp_path / "my.sets")
    with pytest.raises(ValueError, match=f"my.sets: .*({words}).*build it again"):
        store.load(SkipSetAnchors, tmp_path / "my.sets")


def test_no_anchors_at_all(tmp_path: Path) -> None:
    empty = {name: array[:0] for name, array in ANCHORED.arrays.items()}
    store.save(SkipSetAnchors(**empty), tmp_path / "my.sets")
    with pytest.raises(ValueError, match="it has no anchors: build it again"):
        store.load(SkipSetAnchors, tmp_path / "my.sets")
