"""Stochastic beam search: its trees follow the distribution of paths drawn without replacement, whatever
chooses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from itertools import product
from math import log

import pytest
import torch
from scipy.stats import chi2

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.noise import KeyedNoise, Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.proof.enumerated_noise import Branch, EnumeratedNoise
from outpace.recipes.verification.rsd_s import beam
from tests.tiers import slow

MODEL = TableTarget(3, seed=5, order=2)
Levels = tuple[tuple[tuple[int, ...], ...], ...]  # per level its paths, in the order they came


def drafted(
    widths: Sequence[int], noise: Noise, *sampling: SamplingParams, depth: Sequence[int] = ()
) -> TokenTree:
    rows = len(sampling)
    text = torch.tensor([0])
    ctx = Context(
        (text,) * rows, (1,) * rows, (9,) * rows, tuple(range(rows)), MODEL.open(rows, 99), sampling, noise
    )
    plan = Fixed(len(widths)).plan(ctx)
    if depth:
        plan = plan.within(depth)
    return DraftModel(MODEL, growth=partial(beam, widths=widths)).propose(ctx, plan).tree


def levels(tree: TokenTree, row: int = 0) -> Levels:
    tokens, forest = tree.tokens.tolist(), tree.forest
    found: dict[int, list[tuple[int, ...]]] = {}
    for node in forest.nodes[row][1:]:
        found.setdefault(forest.depths[node], []).append(
            tuple(tokens[each] for each in forest.path(node)[1:])
        )
    return tuple(tuple(found[depth]) for depth in sorted(found))


@cache
def trees(widths: tuple[int, ...], temperature: float = 1.0) -> dict[Levels, float]:
    """The exact distribution of what is drafted."""
    distribution: dict[Levels, float] = {}
    pending = [Branch((), 0)]
    while pending:
        branch = pending.pop()
        found = levels(drafted(widths, EnumeratedNoise([branch], [1], [1]), SamplingParams(temperature)))
        distribution[found] = distribution.get(found, 0.0) + branch.probability
        pending += [Branch(script, 0) for script in branch.left_open]
    return distribution


def q(path: Sequence[int], temperature: float = 1.0) -> float:
    """Probability of a path under the drafter."""
    probability, text = 1.0, [0]
    for token in path:
        probability *= float((MODEL.logits[MODEL.state(text)] / temperature).softmax(-1)[token])
        text.append(token)
    return probability


@pytest.mark.slow
@pytest.mark.parametrize(
    ("widths", "temperature"),
    [
        ((2, 2), 0.7),
        ((2, 2, 2), 1.0),  # enumerated by another test too
        slow((3, 3), 0.7),
        slow((3, 2, 1), 1.0),
    ],
)
def test_every_level_is_paths_drawn_without_replacement(widths: tuple[int, ...], temperature: float) -> None:
    for level in range(len(widths)):
        found: dict[tuple[tuple[int, ...], ...], float] = {}
        for tree, probability in trees(widths, temperature).items():
            found[tree[level]] = found.get(tree[level], 0.0) + probability
        assert sum(found.values()) == pytest.approx(1, abs=1e-12)
        for paths, probability in found.items():
            assert len(set(paths)) == len(paths) == widths[level]
            expected, left = 1.0, 1.0
            for path in paths:
                expected *= q(path, temperature) / left
                left -= q(path, temperature)
            assert probability == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("widths", [(2, 2), (2, 3), slow((1, 3, 2))])
def test_trees_are_those_of_perturbed_scores(widths: tuple[int, ...]) -> None:
    num, expected = 60_000, trees(widths)
    counts = Counter(perturbed(widths, num))
    assert counts.keys() <= expected.keys()
    common = [tree for tree, probability in expected.items() if probability * num >= 20]
    cells = [(counts[tree], expected[tree] * num) for tree in common]
    cells.append((num - sum(seen for seen, _ in cells), num - sum(mean for _, mean in cells)))
    statistic = 2 * sum(seen * log(seen / mean) for seen, mean in cells if seen)
    assert statistic < chi2.isf(1e-6, len(cells) - 1)


def perturbed(widths: Sequence[int], num: int) -> list[Levels]:
    """Trees as published: Gumbel noise on log probabilities, moved so that the best child scores as its
    parent does."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.zeros(num, 1, dtype=torch.int64)  # a path as a number in base 3
    scores = torch.zeros(num, 1, dtype=torch.float64)
    found: list[list[list[tuple[int, ...]]]] = []
    for depth, width in enumerate(widths, 1):
        paths = list(product(range(3), repeat=depth))
        phi = torch.tensor([q(path) for path in paths], dtype=torch.float64).log()
        below = codes[:, :, None] * 3 + torch.arange(3)
        gumbel = -torch.empty(below.shape, dtype=torch.float64).exponential_(generator=generator).log()
        raw = phi[below] + gumbel
        gap = scores[:, :, None] - raw + torch.log1p(-(raw - raw.amax(-1, keepdim=True)).exp())
        moved = scores[:, :, None] - gap.clamp(min=0) - torch.log1p((-gap.abs()).exp())
        assert torch.allclose(moved.amax(-1), scores)
        scores, kept = moved.flatten(1).topk(min(width, moved[0].numel()), sorted=True)
        codes = below.flatten(1).gather(1, kept)
        found.append([[paths[code] for code in row] for row in codes.tolist()])
    return [tuple(tuple(level) for level in tree) for tree in zip(*found, strict=True)]


@pytest.mark.slow
def test_the_path_that_came_first_goes_on_first() -> None:
    for tree in trees((2, 2, 2)):
        for above, below in zip(tree, tree[1:], strict=False):
            assert below[0][:-1] == above[0]


def test_each_child_is_claimed_by_the_distribution_without_its_earlier_siblings() -> None:
    for seed in range(20):
        tree = drafted((3, 4), KeyedNoise([seed], [1], [1]), SamplingParams(1.0))
        claim, tokens = tree.claim, tree.tokens.tolist()
        assert isinstance(claim, Drawn)
        for node, children in enumerate(tree.forest.children):
            text = [0, *(tokens[each] for each in tree.forest.path(node)[1:])]
            expected = MODEL.logits[MODEL.state(text)].softmax(-1)
            for child in children:
                assert claim.q[claim.row[child]].tolist() == pytest.approx(
                    (expected / expected.sum()).tolist()
                )
                expected[tokens[child]] = 0


def test_temperature_zero_keeps_the_likeliest_paths() -> None:
    tree = drafted((2, 3), KeyedNoise([0], [1], [1]), SamplingParams(0.0))
    assert tree.claim is None
    first, second = levels(tree)
    assert list(first) == sorted(((token,) for token in range(3)), key=lambda path: -q(path))[:2]
    assert list(second) == sorted(((*a, b) for a in first for b in range(3)), key=lambda path: -q(path))[:3]


def test_a_support_that_is_used_up_keeps_fewer_paths() -> None:
    tree = drafted((4, 4, 4), KeyedNoise([0], [1], [1]), SamplingParams(1.0, top_k=1))
    assert [len(level) for level in levels(tree)] == [1, 1, 1]
    tree = drafted((4, 4), KeyedNoise([0], [1], [1]), SamplingParams(1.0, top_k=2))
    assert [len(level) for level in levels(tree)] == [2, 4]


def test_a_row_drafts_the_same_alone_and_among_others() -> None:
    rows = [SamplingParams(temperature) for temperature in (1.0, 0.0, 0.7, 1.0, 1.0, 0.7)]
    depth = [3, 3, 2, 1, 3, 0]
    seeds, ones = list(range(6)), [1] * 6
    together = drafted((3, 3, 3), KeyedNoise(seeds, ones, ones), *rows, depth=depth)
    for row, sampling in enumerate(rows):
        alone = drafted((3, 3, 3), KeyedNoise([seeds[row]], [1], [1]), sampling, depth=depth[row : row + 1])
        assert levels(together, row) == levels(alone)
        assert len(levels(alone)) == depth[row]
