"""Nothing is drafted behind a token that ends a row's text: it could never be kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.contracts import Context, Draft, Parts, Plan, Step
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, Shape, TokenTree
from outpace.decode import Session
from outpace.drafters.compose.rows import tree_of_rows
from outpace.drafters.model.grow import grow
from outpace.proof.models import peaked_tables, tables
from outpace.proof.option_values import choices
from outpace.recipes import get
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from tests.tiers import only

STOP = 1
ROWS = [((0, 2), (STOP,)), ((2,), ()), ((2, 0, 0), (STOP,)), ((0,), (STOP,)), ((2, 2), ())]


class Watched:
    """A drafter that keeps its drafts, as they are before anything is removed from them."""

    def __init__(self, drafter: Any) -> None:
        self._drafter, self.drafts = drafter, list[Draft]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self.drafts.append(self._drafter.propose(ctx, plan))
        return self.drafts[-1]


def run(parts: Parts, temperature: float, tokens: int = 24) -> list[Step]:
    sampling = [
        SamplingParams(temperature, max_tokens=tokens, stop=stop, seed=row)
        for row, (_, stop) in enumerate(ROWS)
    ]
    session = Session(parts, [torch.tensor(prompt) for prompt, _ in ROWS], sampling, LazyTargetProbs)
    return list(session.steps())


def behind(tree: TokenTree, stops: list[tuple[int, ...]]) -> int:
    """Number of draft nodes whose parent ends the text of their row."""
    forest, tokens = tree.forest, tree.tokens.tolist()
    parents = [(node, forest.parents[node]) for node in range(forest.num_rows, len(forest))]
    return sum(
        parent >= forest.num_rows and tokens[parent] in stops[forest.rows[node]] for node, parent in parents
    )


GROWN = [
    *("speculative-sampling", "mcsd", "specinfer", "rsd-s", "optimal-mdsd", "cosine", "swift", "s2d"),
    *("eagle", "eagle2", "medusa", "redrafter", "kangaroo", "tli"),
]
QUICK = ["speculative-sampling", "mcsd", "rsd-s", "eagle2", "redrafter", "swift", "cosine"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", only(QUICK, GROWN))
def test_drafters_end_their_drafts_there(name: str, temperature: float) -> None:
    recipe, models = get(name), tables()
    parts = recipe.build(models.target, **next(choices(recipe, models)))
    watched = Watched(parts.drafter)
    parts = replace(parts, drafter=watched)
    ended, others = 0, 0
    for step, draft in zip(
        (s for s in run(parts, temperature) if any(s.generated)), watched.drafts, strict=True
    ):
        stops = [params.stop for params in step.ctx.sampling]
        assert behind(draft.tree, stops) == 0 and draft.tree.tokens.equal(step.draft.tree.tokens)
        others += behind(draft.tree, [() if stop else (STOP,) for stop in stops])
        ended += sum(
            token in stops[row]
            for token, row in zip(draft.tree.tokens.tolist(), draft.tree.forest.rows, strict=True)
        )
    assert ended and others, "texts of other rows go on behind the same token"


class Listed:
    """A drafter of one given tree below every root."""

    want, claims = Match.want, ()
    learns_across_rows = drafts_across_rows = False

    def __init__(self, tokens: list[int], parents: list[int]) -> None:
        self._tokens, self._parents = tokens, parents

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        rows = len(ctx.slots)
        parents, tokens = [-1] * rows, ctx.roots.tolist()
        for row in range(rows):
            place = [row, *range(len(parents), len(parents) + len(self._tokens))]
            parents += [place[parent] for parent in self._parents]
            tokens += self._tokens
        return Draft(TokenTree(torch.tensor(tokens), Forest.of(parents, rows)))

    def observe(self, step: Step) -> None: ...
    def release(self, slots: Any) -> None: ...


def test_what_any_drafter_puts_there_is_removed_before_it_is_verified() -> None:
    drafter = Listed([0, STOP, 2, 0, 2], [0, 0, 2, 3, 1])  # 0 - 2, and STOP - 2 - 0
    parts = Parts(peaked_tables().target, drafter, Match(), Fixed(3))
    for step in run(parts, 1.0):
        tree = step.draft.tree
        for row, (nodes, params) in enumerate(zip(tree.forest.nodes, step.ctx.sampling, strict=True)):
            drafted = tree.tokens[list(nodes[1:])].tolist()
            assert drafted == ([0, STOP, 2] if params.stop else [0, STOP, 2, 0, 2]), row


def test_a_root_that_ended_an_earlier_text_does_not_end_this_one() -> None:
    tree = TokenTree(torch.tensor([STOP, 0, STOP]), Forest.chain((2,)))
    assert tree.within([(STOP,)]) is tree


def test_claims_stay_those_of_the_nodes_that_are_left() -> None:
    q = torch.eye(4)
    tree = TokenTree(
        torch.tensor([2, 0, STOP, 3, 2, 0]),
        Forest.of([-1, -1, 0, 2, 1, 3], 2),
        claim=Drawn(q, (-1, -1, 0, 1, 2, 3), (False,) * 4, draws=((2, 0), (3, 1), (4, 2), (5, 3), (2, 1))),
    )
    left = tree.within([(STOP,), ()])
    assert left.tokens.tolist() == [2, 0, STOP, 2] and left.forest.parents == (-1, -1, 0, 1)
    assert isinstance(left.claim, Drawn) and left.claim.q is q
    assert left.claim.row == (-1, -1, 0, 2) and left.claim.draws == ((2, 0), (3, 2), (2, 1))
    [only_row] = [tree_of_rows(left, [1])]
    assert only_row.tokens.tolist() == [0, 2] and only_row.claim.row == (-1, 2)


class ChainAtOnce:
    """A model that drafts a chain in one call, as compiled ones do."""

    def __init__(self, tokens: list[int], vocab: int = 4) -> None:
        self._logits = [torch.full((1, vocab), -9.0).index_fill(1, torch.tensor([t]), 9.0) for t in tokens]

    def __call__(self, tree: TokenTree) -> tuple[int, torch.Tensor]:
        raise AssertionError("the chain is read in one call")

    def chain(self, depth: int, choose: Any, ends: Any) -> torch.Tensor:
        found: list[int] = []
        for logits in self._logits[:depth]:
            found.append(int(logits.argmax()) if choose is None else choose(logits))
            if ends is not None and len(found) < depth and ends():
                break
        return torch.tensor(found)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("stop", "drafted"), [((STOP,), [2, STOP]), ((), [2, STOP, 0, 3]), ((0,), [2, STOP, 0])]
)
def test_a_chain_that_is_drafted_in_one_call_ends_there(
    stop: tuple[int, ...], drafted: list[int], temperature: float
) -> None:
    params = SamplingParams(temperature, max_tokens=9, stop=stop)
    session = Session(
        Parts(tables().target, Listed([], []), Match(), Fixed(4)),
        [torch.tensor([0])],
        [params],
        LazyTargetProbs,
    )
    for plan in (Plan((4,)), Plan((4,), stop=lambda frontier: [False] * len(frontier.rows))):
        tree = grow(session.context(), plan, ChainAtOnce([2, STOP, 0, 3]))
        assert tree.tokens.tolist() == [0, *drafted]
        assert (tree.claim is None) == (temperature == 0)


def test_a_tree_of_a_fixed_shape_ends_there_in_one_row_only() -> None:
    models = tables()
    recipe = get("mcsd")
    parts = recipe.build(models.target, draft=models.drafts[0])
    shape = Shape.branching((3, 1, 1))  # all tokens of the vocabulary at the first level
    session = Session(
        parts,
        [torch.tensor([0]), torch.tensor([0])],
        [SamplingParams(0.0, max_tokens=9, stop=stop) for stop in ((STOP,), ())],
        LazyTargetProbs,
    )
    tree = parts.propose(session.context(), Plan((3, 3), shape)).tree
    assert behind(tree, [(STOP,), ()]) == 0 < behind(tree, [(), (STOP,)])
    assert [len(nodes) - 1 for nodes in tree.forest.nodes][1] == 9
