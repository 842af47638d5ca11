"""The tree of SWIFT: siblings by confidence, of which the first is extended; the token that ends it stays."""

from __future__ import annotations

import torch

from outpace.controllers.confidence import Confidence
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.recipes.self_speculation.swift.sibling_chain import sibling_chain
from tests.controllers.test_bandits import CacheSize

VOCAB = 20
TOPS = (0.97, 0.9, 0.6, 0.3)  # probability of the most probable token, by level


def context(*temperatures: float) -> Context:
    rows = len(temperatures)
    return Context(
        tokens=tuple(torch.zeros(3, dtype=torch.int64) for _ in temperatures),
        committed=(3,) * rows,
        max_draft_depth=(9,) * rows,
        slots=tuple(range(rows)),
        cache=CacheSize(100, [0] * rows),
        sampling=tuple([SamplingParams(each) for each in temperatures]),
        noise=KeyedNoise(list(range(rows)), [0] * rows, [3] * rows),
    )


class Model:
    """Logits by depth; remembers how many nodes it has read."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self, tree):
        first, self.read = self.read, len(tree)
        probs = torch.tensor(
            [[TOPS[depth]] + [(1 - TOPS[depth]) / (VOCAB - 1)] * (VOCAB - 1) for depth in tree.forest.depths]
        )
        return first, probs.log()[first:]


def drafted(ctx: Context, plan: Plan, **options):
    model = Model()
    tree = sibling_chain(ctx, plan, model, **{"sampled": True, **options})
    return tree, model


def widths(tree, row: int) -> list[int]:
    """Number of nodes per level."""
    depths = [tree.forest.depths[node] for node in tree.forest.nodes[row]]
    return [depths.count(depth) for depth in range(1, max(depths) + 1)]


def test_less_confident_tokens_have_more_siblings_and_the_first_is_extended() -> None:
    tree, model = drafted(context(0.0, 1.0), Plan((4, 4)))
    assert widths(tree, 0) == [3, 5, 8, 10] and widths(tree, 1) == [1, 3, 5, 10]
    for children in tree.forest.children:
        assert not any(tree.forest.children[sibling] for sibling in children[1:])
    assert model.read == 2 * 4  # siblings are not read
    assert isinstance(tree.claim, Drawn)
    greedy, drawn = ([tree.claim.row[node] for node in tree.forest.nodes[row][1:]] for row in (0, 1))
    assert set(greedy) == {-1} and -1 not in drawn and not any(tree.claim.replace)
    tokens = tree.tokens[list(tree.forest.children[0])].tolist()
    assert tokens[0] == 0 and len(set(tokens)) == 3


def test_most_probable_tokens_without_a_claim() -> None:
    tree, _ = drafted(context(1.0), Plan((3,)), sampled=False)
    assert tree.claim is None and widths(tree, 0) == [3, 5, 8]


def test_the_token_of_low_probability_stays_with_its_siblings() -> None:
    ctx = context(0.0)
    plan = Confidence(4, 0.8).plan(ctx)
    tree, model = drafted(ctx, plan)
    assert widths(tree, 0) == [3, 5, 8] and model.read == 3  # 0.6 < 0.8 ends it


def test_without_siblings_it_is_a_chain() -> None:
    tree, _ = drafted(context(0.0, 1.0), Plan((2, 3)), siblings=False)
    assert tree.forest.is_chain and widths(tree, 0) == [1, 1] and widths(tree, 1) == [1, 1, 1]
