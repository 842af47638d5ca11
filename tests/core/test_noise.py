"""Noise is a pure function of its keys, and its draws follow the distribution they are given."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from scipy.stats import chisquare, kstest

from outpace.core import noise
from outpace.core.noise import Chooser, Key, KeyedNoise, derived

P = torch.tensor([0.1, 0.0, 0.6, 0.3], dtype=torch.float64)


def key(nodes: Sequence[int], use: str = "draft", draw: int = 0) -> Key:
    return Key([0] * len(nodes), nodes, [0] * len(nodes), use, draw)


def test_choices_follow_the_distribution_and_skip_what_has_none() -> None:
    chosen = KeyedNoise([3], [1], [10]).choose(P.expand(20_000, -1), key(range(20_000)))
    counts = torch.bincount(chosen, minlength=4)
    assert counts[1] == 0
    assert chisquare(counts[[0, 2, 3]], P[[0, 2, 3]] * 20_000).pvalue > 1e-6


def test_uniforms_are_uniform_over_nodes_turns_positions_and_seeds() -> None:
    by_node = KeyedNoise([0], [1], [1]).uniforms(key(range(5_000)))
    by_turn = [KeyedNoise([0], [turn], [1]).uniforms(key([1]))[0] for turn in range(5_000)]
    by_position = [KeyedNoise([0], [1], [length]).uniforms(key([0], "target"))[0] for length in range(5_000)]
    by_seed = [KeyedNoise([seed], [1], [1]).uniforms(key([0], "target"))[0] for seed in range(5_000)]
    for numbers in (by_node, by_turn, by_position, by_seed):
        assert kstest(numbers, "uniform").pvalue > 1e-6


def test_draws_without_replacement_are_distinct_and_follow_the_distribution() -> None:
    noise = KeyedNoise([5], [1], [1])
    drawn = noise.draw(P.expand(20_000, -1), 2, key(range(20_000)), replace=False)
    assert bool((drawn[:, 0] != drawn[:, 1]).all())
    second = torch.bincount(drawn[:, 1], minlength=4)[[0, 2, 3]]
    p = P[[0, 2, 3]]
    expected = torch.stack([sum(p[i] * p[j] / (1 - p[i]) for i in range(3) if i != j) for j in range(3)])
    assert chisquare(second, expected * 20_000).pvalue > 1e-6


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("support", [3, 5, 400])
@pytest.mark.parametrize(("rows", "size"), [(200, 500), (20, noise.WIDE + 77)])
def test_several_draws_are_what_one_after_the_other_gives(
    replace: bool, support: int, rows: int, size: int
) -> None:
    keyed = KeyedNoise([5], [1], [1])
    distribution = torch.zeros(rows, size, dtype=torch.float64)
    generator = torch.Generator().manual_seed(support)
    places = torch.stack([torch.randperm(size, generator=generator)[:support] for _ in range(rows)])
    distribution.scatter_(
        1, places, torch.randn(rows, support, generator=generator, dtype=torch.float64).mul(3).softmax(-1)
    )
    before = distribution.clone()
    at_once = keyed.draw(distribution, 4, key(range(rows)), replace=replace)
    assert torch.equal(distribution, before)
    assert torch.equal(at_once, Chooser.draw(keyed, distribution, 4, key(range(rows)), replace=replace))


@pytest.mark.parametrize("size", [3, noise.WIDE])
def test_a_used_up_support_is_marked(size: int) -> None:
    one_hot = torch.zeros(1, size)
    one_hot[0, 1] = 1.0
    assert KeyedNoise([5], [1], [1]).draw(one_hot, 3, key([0]), replace=False).tolist() == [[1, -1, -1]]


def test_target_noise_depends_on_position_only() -> None:
    early = KeyedNoise([3], [1], [10]).uniforms(Key([0], [4], [2], "target"))
    late = KeyedNoise([3], [9], [12]).uniforms(Key([0], [0], [0], "target"))
    assert early == late


@pytest.mark.parametrize("other", [key([1]), key([0], "accept"), key([0], draw=1)])
def test_every_other_key_is_its_own(other: Key) -> None:
    noise = KeyedNoise([3], [1], [10])
    assert noise.uniforms(key([0])) != noise.uniforms(other)


def test_another_turn_is_other_noise() -> None:
    assert KeyedNoise([3], [1], [10]).uniforms(key([0])) != KeyedNoise([3], [2], [10]).uniforms(key([0]))


def test_a_rows_noise_does_not_depend_on_its_batch() -> None:
    alone = KeyedNoise([3], [1], [10]).uniforms(key([5]))
    among = KeyedNoise([8, 3], [4, 1], [2, 10]).uniforms(Key([1], [5], [0], "draft"))
    assert alone == among


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 2])
def test_the_largest_uniform_still_gives_a_possible_option(dtype: torch.dtype, rows: int) -> None:
    class Edge(KeyedNoise):
        def uniforms(self, key: Key, draw: int = 0) -> list[float]:
            return [1 - 2.0**-53] * len(key.rows)

    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        distribution = torch.rand(rows, 9, generator=generator, dtype=dtype).softmax(-1)
        distribution[:, -3:] = 0
        assert Edge([0], [1], [1]).choose(distribution, key(range(rows))).tolist() == [5] * rows


@pytest.mark.parametrize("size", [noise.WIDE, noise.WIDE + 77])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_vocabularies_choose_the_same_in_two_steps(
    size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(size)
    probs = (torch.randn(60, size, dtype=dtype, generator=generator) * 4).softmax(-1)
    probs[:20, torch.randperm(size, generator=generator)[: size - 9]] = 0  # whole blocks without any mass
    probs[20] = 0
    probs[20, -1] = 1.0
    probs[21] *= 7  # weights need not sum to one
    keyed = KeyedNoise([3] * 60, [1] * 60, [5] * 60)
    rows = list(range(60))
    all_rows = Key(rows, rows, rows, "draft")
    found = keyed.choose(probs, all_rows)
    assert bool((probs.gather(1, found[:, None]) > 0).all())
    alone = [keyed.choose(probs[row : row + 1], Key([row], [row], [row], "draft")) for row in rows]
    assert torch.equal(torch.cat(alone), found)
    monkeypatch.setattr(noise, "WIDE", 1 << 30)
    assert torch.equal(keyed.choose(probs, all_rows), found)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_a_large_vocabulary_are_possible_options(
    uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeyedNoise, "uniforms", lambda self, key, draw=0: [uniform] * len(key.rows))
    probs = torch.zeros(2, noise.WIDE)
    probs[0, 700:900] = 0.1
    probs[1, [3, -600]] = 0.3
    found = KeyedNoise([1, 2], [1, 1], [1, 1]).choose(probs, Key([0, 1], [0, 0], [0, 0], "draft")).tolist()
    assert found == ([700, 3] if uniform == 0 else [899, noise.WIDE - 600])


def test_seeds_of_samples_are_not_those_of_other_requests() -> None:
    """Requests often have seeds 0, 1, 2 ...: samples of one must not be those of the next one."""
    seeds = [derived(seed, index) for seed in range(50) for index in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert [derived(seed, 0) for seed in range(50)] == list(range(50))


@pytest.mark.parametrize("use", ["target", "draft"])
def test_requests_share_no_random_numbers(use: str) -> None:
    """Seeds, positions and steps are all small numbers: none may take the place of another."""
    seeds = range(50)
    found = [
        number
        for place in range(50)
        for number in KeyedNoise(seeds, [place] * 50, [place] * 50).uniforms(
            Key(seeds, [0] * 50, [0] * 50, use)
        )
    ]
    assert len(set(found)) == 2500
