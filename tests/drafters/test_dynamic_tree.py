"""Dynamic trees hold the most probable paths that a beam search meets."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from outpace.core.contracts import Plan
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.models.table import TableTarget
from outpace.recipes.base.autoregressive import autoregressive
from outpace.sampling.target_probs import LazyTargetProbs

PROMPTS = ([0, 1, 2], [3, 1], [2])


def drafted(model: TableTarget, depth: tuple[int, ...], *, width: int, num_nodes: int, sampling=None):
    """The tree below the texts in PROMPTS, and the numbers of nodes in its forwards."""
    sampling = sampling or SamplingParams(0.0, max_tokens=20)
    tensors = [torch.tensor(each) for each in PROMPTS[: len(depth)]]
    session = Session(autoregressive.build(model), tensors, [sampling] * len(depth), LazyTargetProbs)
    session.batch._prompt_tokens = 100
    ctx = session.context()
    forwards: list[int] = []

    def read(tree: TokenTree):
        tokens, forest = tree.tokens.tolist(), tree.forest
        first = sum(forwards)
        forwards.append(len(tree) - first)
        texts = [
            [*ctx.tokens[forest.rows[node]].tolist(), *(tokens[each] for each in forest.path(node)[1:])]
            for node in range(first, len(tree))
        ]
        return first, model.logits[[model.state(text) for text in texts]]

    return ctx, dynamic_tree(ctx, Plan(depth), read, width=width, num_nodes=num_nodes), forwards


def log_prob(model: TableTarget, text: list[int], path: tuple[int, ...]) -> float:
    total = 0.0
    for count, token in enumerate(path):
        total += float(model.logits[model.state([*text, *path[:count]])].log_softmax(-1)[token])
    return total


def paths_of(tree: TokenTree, row: int) -> list[tuple[int, ...]]:
    tokens = tree.tokens.tolist()
    return [tuple(tokens[each] for each in tree.forest.path(node)[1:]) for node in tree.forest.nodes[row][1:]]


def test_with_a_wide_beam_the_tree_holds_the_most_probable_paths_of_all() -> None:
    model = TableTarget(4, seed=5)
    ctx, tree, _ = drafted(model, (3, 2, 1), width=64, num_nodes=9)
    for row, depth in enumerate((3, 2, 1)):
        text = ctx.tokens[row].tolist()
        every = [path for size in range(1, depth + 1) for path in product(range(4), repeat=size)]
        best = sorted(every, key=lambda path: -log_prob(model, text, path))[:9]
        assert sorted(paths_of(tree, row)) == sorted(best)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_tree_is_a_part_of_the_beam_and_closed_under_prefixes(width: int) -> None:
    model = TableTarget(4, seed=6)
    ctx, tree, forwards = drafted(model, (5, 3), width=width, num_nodes=7)
    assert forwards == [2, *[2 * width] * 2, *[width] * 2]  # the second row is drafted to depth 3
    for row in range(2):
        paths = paths_of(tree, row)
        assert len(paths) == len(set(paths)) == min(7, (5, 3)[row] if width == 1 else 7)
        assert all(path[:-1] in {(), *paths} for path in paths)
    logs = tree.confidence
    assert logs is not None
    for node, parent in enumerate(tree.forest.parents):
        if parent >= 0:
            row = tree.forest.rows[node]
            path = tuple(tree.tokens[tree.forest.path(node)[1:]].tolist())
            own = log_prob(model, ctx.tokens[row].tolist(), path)
            above = log_prob(model, ctx.tokens[row].tolist(), path[:-1])
            assert abs(float(logs[node]) - (own - above)) < 1e-6


def test_a_flat_distribution_gives_a_wide_tree_and_a_peaked_one_a_deep_tree() -> None:
    depths = {}
    for name, factor in (("flat", 0.01), ("peaked", 12.0)):
        model = TableTarget(12, order=1, seed=2)
        model.logits = model.logits * factor
        _, tree, _ = drafted(model, (6,), width=6, num_nodes=10)
        depths[name] = max(tree.forest.depths)
    assert depths["flat"] < 3 < depths["peaked"]


def test_of_equally_probable_paths_the_shorter_stays() -> None:
    """Else a token of probability 1 could stay without the one before it."""
    model = TableTarget(4, seed=5)
    model.logits = torch.full_like(model.logits, -1e4)
    model.logits[:, 1] = 0.0
    _, tree, _ = drafted(model, (5, 5), width=2, num_nodes=3)
    assert [paths_of(tree, row) for row in range(2)] == [[(1,), (1, 1), (1, 1, 1)]] * 2


def test_tokens_that_the_request_excludes_are_not_drafted() -> None:
    model = TableTarget(4, seed=5)
    sampling = SamplingParams(1.0, max_tokens=20, bad_words=((0,), (2,)))
    _, tree, _ = drafted(model, (3,), width=4, num_nodes=30, sampling=sampling)
    assert set(tree.tokens.tolist()[1:]) == {1, 3}
