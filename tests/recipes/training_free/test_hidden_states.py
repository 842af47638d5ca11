"""The index of hidden states: it finds the states it holds, and its projection is the stated one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from outpace.indexes import store
from outpace.recipes.training_free.dresd import hidden_states as dense
from outpace.recipes.training_free.dresd.hidden_states import HiddenStateIndex

NUM, HIDDEN, DIMS = 2000, 48, 16


@pytest.fixture
def states() -> np.ndarray:
    """Correlated, with channels of very different size, as hidden states have."""
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(NUM, 24)) @ rng.normal(size=(24, HIDDEN)) + 0.1 * rng.normal(size=(NUM, HIDDEN))
    return (mixed * np.exp(rng.normal(size=HIDDEN) * 3) + 5).astype(np.float32)


@pytest.fixture(params=["faiss", "lists", "numpy"])
def index(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, states: np.ndarray
) -> HiddenStateIndex:
    if request.param != "numpy" and not find_spec("faiss"):
        pytest.skip("faiss is not installed")
    monkeypatch.setattr(dense, "MIN_STATES_FOR_LISTS", 1000 if request.param == "lists" else 1 << 30)
    built = HiddenStateIndex.build(states, np.arange(NUM * 3).reshape(NUM, 3), dims=DIMS)
    if request.param == "numpy":
        built.__dict__["_faiss"] = None
    return built


def test_what_is_stored_is_found_first(index: HiddenStateIndex, states: np.ndarray) -> None:
    reciprocal: list[float] = []
    for place in range(0, NUM, 7):
        values, similarity = index.search(states[place], 50)
        assert len(values) == 50 and (np.diff(similarity) <= 1e-6).all()
        ranks = np.flatnonzero(values[:, 0] == 3 * place)
        reciprocal.append(1 / (1 + ranks[0]) if len(ranks) else 0.0)
    assert np.mean(reciprocal) > 0.9
    assert np.mean(reciprocal) > 0.999  # the projection keeps these states apart


def test_the_nearest_are_those_of_a_plain_statement(index: HiddenStateIndex, states: np.ndarray) -> None:
    z = (states - states.mean(0, dtype=np.float64)) / states.std(0, dtype=np.float64)
    _, _, axes = np.linalg.svd(z, full_matrices=False)
    keys = z @ axes[:DIMS].T
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    assert np.linalg.norm(index.project(states), axis=1) == pytest.approx(np.ones(NUM), abs=1e-5)
    rng, agreed = np.random.default_rng(1), list[float]()
    for _ in range(40):
        noisy = states[rng.integers(NUM)] + states.std(0) * 0.2 * rng.normal(size=HIDDEN)
        query = (noisy - states.mean(0)) / states.std(0) @ axes[:DIMS].T
        expected = np.argsort(-(keys @ query / np.linalg.norm(query)))[:10]
        values, similarity = index.search(noisy, 10)
        agreed.append(len({*(3 * expected)} & {*values[:, 0]}) / 10)
        if not len(index.centers):
            assert similarity == pytest.approx(
                np.sort(keys @ query / np.linalg.norm(query))[::-1][:10], abs=1e-3
            )
    assert np.mean(agreed) > (0.9 if len(index.centers) else 0.99)


def test_paths_begin_with_the_newest_token(states: np.ndarray) -> None:
    values = np.tile([[1, 7, 8, 9], [2, 4, 5, -1]], (NUM // 2, 1))
    index = HiddenStateIndex.build(states, values, dims=DIMS)
    nearest = index.search(states[4], 50)[0]
    for newest in (1, 2, 3):
        paths = index.continuations(states[4], newest, num=50, keep=10, length=2)
        assert paths.tolist() == [row[1:3] for row in nearest.tolist() if row[0] == newest][:10]


def test_a_channel_that_never_changes_is_left_out() -> None:
    states = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)
    states[:, 2] = 4.0
    index = HiddenStateIndex.build(states, np.zeros((100, 1)), dims=4)
    assert np.isfinite(index.keys).all() and not index.components[2].any()


def test_a_saved_index_finds_the_same(index: HiddenStateIndex, states: np.ndarray, tmp_path: Path) -> None:
    store.save(index, tmp_path / "dense.index")
    for mapped in (False, True):
        loaded = store.load(HiddenStateIndex, tmp_path / "dense.index", mapped=mapped)
        if index.__dict__.get("_faiss", 1) is None:
            loaded.__dict__["_faiss"] = None
        for place in (3, 500, 1999):
            for one, other in zip(
                loaded.search(states[place], 20), index.search(states[place], 20), strict=True
            ):
                assert np.array_equal(one, other)
    arrays = [index.mean, index.components, index.keys, index.values, index.centers, index.lists]
    assert index.nbytes == loaded.nbytes == sum(array.nbytes for array in arrays)


def test_states_and_tokens_that_do_not_fit_are_refused(states: np.ndarray) -> None:
    with pytest.raises(ValueError, match="ask for fewer"):
        HiddenStateIndex.build(states, np.zeros((NUM, 2)), dims=HIDDEN + 1)
    with pytest.raises(ValueError, match="give"):
        HiddenStateIndex.build(states, np.zeros((NUM - 1, 2)))
