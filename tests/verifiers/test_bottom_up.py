"""Bottom-up rules on chains and trees: exact for every kind of draft, and they accept at least as much as
top-down rules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Drafter, Parts, Scores, Verifier
from outpace.core.grower import Grower
from outpace.core.noise import TARGET, Key, KeyedNoise, Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, Shape, TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.mutants.drafters import CorrectDrafter
from outpace.proof.reference import table_logits
from outpace.verifiers.block import Block
from outpace.verifiers.rejection import Rejection
from outpace.verifiers.traversal import Traversal
from tests.tiers import slow


def models(seed: int, vocab: int = 2) -> tuple[TableTarget, TableTarget]:
    """A target and a drafter, likely and unlikely to agree."""
    target = TableTarget(vocab, order=3, seed=seed, spread=1 + seed % 3)
    return target, TableTarget(vocab, order=2, seed=seed + 1000, spread=1 + seed % 2)


def accepted(target: TableTarget, drafter: Drafter, verifier: Verifier, widths: tuple[int, ...]) -> float:
    return expected_accepted(
        lambda: Parts(target, drafter, verifier, Fixed(Shape.branching(widths))), len(widths)
    )


@pytest.mark.parametrize(
    ("vocab", "depth", "seeds"), [(2, 2, 10), (2, 3, 5), (3, 2, 5), slow(2, 3, 15), slow(3, 2, 15)]
)
def test_a_block_keeps_more_than_token_by_token(vocab: int, depth: int, seeds: int) -> None:
    for seed in range(seeds):
        target, draft = models(seed, vocab)
        gain = accepted(target, DraftModel(draft), Block(), (1,) * depth) - accepted(
            target, DraftModel(draft), Rejection(), (1,) * depth
        )
        assert gain > 0, f"seed {seed}"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_on_a_chain_traversal_is_block_verification(depth: int) -> None:
    for seed in range(8):
        target, draft = models(seed)
        block, tree = (
            accepted(target, DraftModel(draft), rule, (1,) * depth) for rule in (Block(), Traversal())
        )
        assert tree == pytest.approx(block, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_one_drafted_token_is_judged_as_ever(seed: int) -> None:
    target, draft = models(seed, 3)
    down, up = (accepted(target, DraftModel(draft), rule, (1,)) for rule in (Rejection(), Block()))
    assert up == pytest.approx(down, abs=1e-12)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    ("vocab", "widths", "seeds"),
    [
        (2, (2, 1), 6),
        pytest.param(2, (1, 2), 15, marks=pytest.mark.slow),
        pytest.param(2, (2, 2), 3, marks=pytest.mark.slow),
        pytest.param(2, (2, 1, 1), 4, marks=pytest.mark.slow),
        pytest.param(3, (2, 1), 4, marks=pytest.mark.slow),
    ],
)
def test_traversal_keeps_at_least_as_much_as_recursive_rejection(
    vocab: int, widths: tuple[int, ...], seeds: int, replace: bool
) -> None:
    gains = []
    for seed in range(seeds):
        target, draft = models(seed, vocab)
        drafter = DraftModel(draft, replace=replace)
        gains.append(
            accepted(target, drafter, Traversal(), widths) - accepted(target, drafter, Rejection(), widths)
        )
    assert min(gains) > -1e-12
    if widths[0] > 1 and widths != (2, 2):  # where every token is drawn last, nothing is left to gain
        assert sum(gains) > 0.001


@pytest.mark.parametrize("replace", [False, True])
def test_siblings_of_one_level_are_judged_as_by_recursive_rejection(replace: bool) -> None:
    for seed in range(6):
        target, draft = models(seed, 3)
        down, up = (
            accepted(target, DraftModel(draft, replace=replace), rule, (2,))
            for rule in (Rejection(), Traversal())
        )
        assert up == pytest.approx(down, abs=1e-12)


class Mixed(CorrectDrafter):
    """Draws some children of every node from q, perhaps from the head of it alone, and chooses others."""

    def __init__(
        self, model: TableTarget, *, width: int = 1, replace: bool = False, listed: bool = False
    ) -> None:
        super().__init__(model, width=width, replace=replace)
        self.listed = listed

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        values, ids = q.topk(2)
        best = ids[:, 0]
        chosen = grower.add_chosen(at, best)  # stands first, is tried last
        if self.listed:
            q = values / values.sum(-1, keepdim=True)
        return chosen + grower.add_drawn(
            at, q, self.width, ctx.noise, ids if self.listed else None, replace=self.replace
        )


class ChosenBelow(CorrectDrafter):
    """Draws the first token, then chooses."""

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        if at[0] < grower.structure().forest.num_rows:
            return super().children(grower, at, q, ctx)
        return grower.add_chosen(at, q.argmax(-1))


TARGET_MODEL, DRAFT, OTHER = (
    TableTarget(3, seed=1),
    TableTarget(3, seed=2, order=2),
    TableTarget(3, seed=3, order=1),
)
DRAFTERS = {
    "two levels of two": (lambda: DraftModel(DRAFT), (2, 2)),
    "chosen beside drawn": (lambda: Mixed(DRAFT), (1, 1)),
    "chosen beside listed": (lambda: Mixed(DRAFT, listed=True), (1, 1)),
    "chosen beside two": (lambda: Mixed(DRAFT, width=2), (1,)),
    "chosen beside two independent": (lambda: Mixed(DRAFT, width=2, replace=True), (1,)),
    "chosen below drawn": (lambda: ChosenBelow(DRAFT), (1, 1)),
}
CASES = [
    Case((0, 1, 2, 0, 1), SamplingParams(temperature=0.7, max_tokens=3)),
    Case((2,), SamplingParams(temperature=0.0, max_tokens=4)),
]


def error(drafter: Drafter, verifier: Verifier, widths: tuple[int, ...]) -> float:
    parts = Parts(TARGET_MODEL, drafter, verifier, Fixed(Shape.branching(widths)))
    found = enumerate_distributions(lambda: parts, CASES, replays=5)
    return largest_error(found, table_logits(TARGET_MODEL.logits, TARGET_MODEL.state), CASES)


@pytest.mark.parametrize("name", DRAFTERS)
def test_traversal_is_exact_on_every_kind_of_tree(name: str) -> None:
    make, widths = DRAFTERS[name]
    assert error(make(), Traversal(), widths) < BOUND


def test_block_is_exact_where_a_chain_is_drawn_listed_and_chosen() -> None:
    class Listed(Mixed):
        def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
            values, ids = q.topk(2)
            return grower.add_drawn(at, values / values.sum(-1, keepdim=True), 1, ctx.noise, ids)

    assert error(ChosenBelow(DRAFT), Block(), (1, 1)) < BOUND
    assert error(Listed(DRAFT), Block(), (1, 1)) < BOUND


def test_chosen_tokens_gain_nothing_from_walking_up() -> None:
    for seed in range(6):
        target, draft = models(seed)
        down, *up = (
            accepted(target, ChosenBelow(draft), rule, (1, 1)) for rule in (Rejection(), Block(), Traversal())
        )
        assert up == pytest.approx([down, down], abs=1e-12)


def test_block_refuses_trees_and_names_the_alternative() -> None:
    with pytest.raises(ValueError, match="Traversal"):
        accepted(TARGET_MODEL, DraftModel(DRAFT), Block(), (2,))


class Given:
    """Implementation of core.contracts.TargetProbs with given distributions; records the requested nodes."""

    seconds = 0.0

    def __init__(self, p: Tensor) -> None:
        self.p, self.requested = p, set[int]()

    def probs(self, nodes: Sequence[int] | None) -> Tensor:
        nodes = range(len(self.p)) if nodes is None else nodes
        self.requested |= set(nodes)
        return self.p[list(nodes)]

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = TARGET) -> list[int]:
        assert nodes is not None
        key = Key([0] * len(nodes), list(nodes), list(nodes), use)
        return noise.choose(self.probs(nodes), key).tolist()


class Strict(KeyedNoise):
    """Noise that looks at what it is given."""

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        assert bool((probs >= 0).all()) and bool((probs.sum(-1) > 0).all())
        self.dtype = probs.dtype
        return super().choose(probs, key)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        assert all(0 <= probability <= 1 for probability in accept)
        return super().flip(accept, key)


def drawn(q: Tensor, widths: tuple[int, ...], noise: Noise) -> TokenTree:
    """A tree of draws from rows of q, node by node."""
    grower, level, used = Grower(torch.tensor([0])), [0], 0
    for width in widths:
        before = len(grower)
        grower.add_drawn(level, q[used : used + len(level)], width, noise)
        used += len(level)
        level = list(range(before, len(grower)))
    return grower.tree()


DISTRIBUTIONS = {
    "equal": lambda logits, other: (logits, logits),
    "nearly equal": lambda logits, other: (logits, logits + 1e-6 * other),
    "rounded": lambda logits, other: (logits, (logits + 1e-2 * other).bfloat16().float()),
    "peaked": lambda logits, other: (other * 20, logits * 20),
    "unrelated": lambda logits, other: (logits, other),
}
NO_SCORES = Scores(0, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_no_mass_is_negative_or_undefined(kind: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for seed in range(30):
        logits, other = torch.randn(2, 40, 50, generator=generator).bfloat16().float()
        p, q = (distribution.to(dtype).softmax(-1) for distribution in DISTRIBUTIONS[kind](logits, other))
        noise = Strict([seed], [1], [5])
        tree, chain = drawn(q, (3, 2, 1), noise), drawn(q, (1, 1, 1), Strict([seed], [2], [5]))
        for verifier, draft in ((Traversal(), tree), (Traversal(), chain), (Block(), chain)):
            verdict = verifier.verify(draft, Given(p), NO_SCORES, noise)
            assert noise.dtype == dtype
            if kind == "equal":
                assert draft.forest.depths[verdict.leaf[0]] == 3


def test_distributions_of_unreached_branches_are_not_requested() -> None:
    p = torch.randn(40, 50).softmax(-1)
    noise = Strict([0], [1], [5])
    tree, distribution = drawn(p, (3, 2, 1), noise), Given(p)
    leaf = Traversal().verify(tree, distribution, NO_SCORES, noise).leaf[0]
    assert distribution.requested == set(tree.forest.path(leaf)) and len(distribution.requested) == 4


@pytest.mark.parametrize("verifier", [Block(), Traversal()])
def test_a_path_as_probable_under_both_models_is_always_accepted(verifier: Verifier) -> None:
    # p / q is 1/2 at the first token and 2 at the second: together they are as likely as drafted
    p = torch.tensor([[0.25, 0.75], [0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    q = torch.full((2, 2), 0.5, dtype=torch.float64)
    claim = Drawn(q, row=(-1, 0, 1), replace=(False, False))
    tree = TokenTree(torch.tensor([0, 0, 1]), Forest.chain((2,)), None, claim)
    for seed in range(20):
        assert verifier.verify(tree, Given(p), NO_SCORES, KeyedNoise([seed], [1], [5])).leaf == [2]
