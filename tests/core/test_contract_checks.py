"""Parts that break a contract are refused in one sentence that says what is wrong, before a wrong text or an
error elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim, Drawn, DrawnBeside
from outpace.core.context import Context
from outpace.core.contract_checks import ContractError
from outpace.core.contracts import (
    NOTHING,
    Draft,
    Drafter,
    Parts,
    Plan,
    SamplingParams,
    Target,
    Verdict,
    recipe,
)
from outpace.core.grower import Grower
from outpace.core.tree import Forest, TokenTree
from outpace.decode import Session
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.no_draft import NoDraft
from outpace.proof.models import tables
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection

PROMPTS = ([0, 1, 2, 0, 1], [2, 1, 2])
TARGET = tables().target
VOCAB = TARGET.vocab


def decode(drafter: Any, verifier: Any = None, controller: Any = None) -> None:
    parts = Parts(TARGET, drafter, verifier or Match(), controller or Fixed(2))
    prompts = [torch.tensor(prompt) for prompt in PROMPTS]
    sampling = [SamplingParams(1.0, max_tokens=8, seed=row) for row in range(len(PROMPTS))]
    for _ in Session(parts, prompts, sampling, LazyTargetProbs).steps():
        pass


class Drafting(NoDraft):
    """A drafter whose draft is a chain of two tokens in each row, changed by `change`."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self._change = change

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        forest = Forest.chain((2,) * len(ctx.slots))
        tokens = torch.cat([ctx.roots, torch.zeros(2 * len(ctx.slots), dtype=torch.int64)])
        return self._change(TokenTree(tokens, forest))


def with_tokens(change: Any) -> Drafting:
    return Drafting(lambda tree: Draft(replace(tree, tokens=change(tree.tokens))))


@pytest.mark.parametrize(
    "drafter, message",
    [
        (with_tokens(lambda tokens: tokens + VOCAB), f"token [34], which is outside .* 0 to {VOCAB - 1}"),
        (with_tokens(lambda tokens: torch.where(tokens == 0, -1, tokens)), "token -1, which is outside"),
        (with_tokens(lambda tokens: (tokens + 1) % VOCAB), "row 0 has the root 2, and .* token is 1"),
        (with_tokens(lambda tokens: tokens[2:]), "4 tokens for the 6 nodes"),
        (with_tokens(lambda tokens: tokens[:, None]), r"a tensor \(6, 1\) of int64"),
        (with_tokens(lambda tokens: tokens.float()), r"a tensor \(6,\) of float32"),
        (with_tokens(lambda tokens: tokens.tolist()), "are a list"),
        (Drafting(lambda tree: tree), "returned a TokenTree: return Draft"),
        (Drafting(lambda tree: None), "returned None: return Draft"),
        (
            Drafting(lambda tree: Draft(TokenTree(tree.tokens[:2], Forest.chain((1,))))),
            "1 roots for a batch of 2 rows",
        ),
        (
            Drafting(lambda tree: Draft(replace(tree, forest=Forest((-1, -1, 3, 0, 1, 4), 2)))),
            "the draft is no tree, as node 2 of the forest names parent 3; a parent comes before",
        ),
    ],
)
def test_a_faulty_draft_is_refused(drafter: Drafter, message: str):
    with pytest.raises(ContractError, match=message):
        decode(drafter)


class Claiming(NoDraft):
    """A drafter that draws one token in each row, uniformly, and changes the claim by `change`."""

    claims: tuple[type[Claim], ...] = (Drawn,)

    def __init__(self, change: Any) -> None:
        super().__init__()
        self._change = change

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        grower, at = Grower(ctx.roots), [row for row, depth in enumerate(plan.depth) if depth]
        if not at:
            return Draft(TokenTree.roots(ctx.roots))
        grower.add_drawn(at, torch.full((len(at), VOCAB), 1 / VOCAB, dtype=torch.float64), 1, ctx.noise)
        tree = grower.tree()
        assert isinstance(tree.claim, Drawn)
        return Draft(replace(tree, claim=self._change(tree.claim)))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda claim: replace(claim, row=claim.row[:-1]), "`row` for 3 nodes of a draft with 4"),
        (lambda claim: replace(claim, row=(-1, -1, 0, 7)), "drawn from row 7"),
        (lambda claim: replace(claim, replace=(False,)), "1 items of `replace`"),
        (lambda claim: replace(claim, q=claim.q[:, :-1]), f"over {VOCAB - 1} tokens, .* has {VOCAB}"),
    ],
)
def test_a_faulty_claim_is_refused(change: Any, message: str):
    with pytest.raises(ContractError, match=message):
        decode(Claiming(change), Rejection())


def test_a_claim_without_a_distribution_after_every_node_is_refused():
    class Short(Claiming):
        claims = (DrawnBeside,)

    def short(claim: Drawn) -> DrawnBeside:
        rows = torch.full((len(claim.row) - 1, VOCAB), 1 / VOCAB, dtype=torch.float64)
        return DrawnBeside(claim.q, claim.row, claim.replace, after=rows, logits=rows.log())

    with pytest.raises(ContractError, match="both have a row for each of 4 nodes and"):
        decode(Short(short), Rejection())


def test_a_claim_that_was_not_announced_is_refused():
    """Else Parts cannot compare it with what the verifier accepts."""

    class Silent(Claiming):
        claims = ()

    with pytest.raises(ContractError, match=r"Drawn, which .* set claims = \(Drawn,\)"):
        decode(Silent(lambda claim: claim))


class Planned(Fixed):
    def __init__(self, made: Any) -> None:
        super().__init__(2)
        self._made = made

    def plan(self, ctx: Context) -> Plan:
        return self._made


@pytest.mark.parametrize(
    "made, message",
    [
        (Plan((2,)), "planned 1 depths for a batch of 2 rows"),
        (Plan((2, -1)), "planned the depth -1: 0 stands for no draft"),
        (Plan(cast(Any, (2, 1.5))), "a depth is a whole number"),
        (4, "returned a int: return Plan"),
    ],
)
def test_a_faulty_plan_is_refused(made: Any, message: str):
    with pytest.raises(ContractError, match=message):
        decode(NGram(), controller=Planned(made))


class Judging(Match):
    def __init__(self, change: Any) -> None:
        self._change = change

    def verify(self, tree: TokenTree, *rest: Any) -> Verdict:
        return self._change(super().verify(tree, *rest))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda v: Verdict([99, v.leaf[1]], v.bonus), "node 99 as the leaf of row 0"),
        (lambda v: Verdict([-1, v.leaf[1]], v.bonus), "node -1 as the leaf of row 0"),
        (
            lambda v: Verdict([v.leaf[1], v.leaf[1]], v.bonus),
            "as the leaf of row 0, whose tree has the nodes 0",
        ),
        (lambda v: Verdict(v.leaf, [v.bonus[0], VOCAB]), f"bonus token of row 1 is {VOCAB}"),
        (lambda v: Verdict(v.leaf, v.bonus[:1]), "2 leaves and 1 bonus tokens for 2 rows"),
        (lambda v: (v.leaf, v.bonus), "returned a tuple: return Verdict"),
    ],
)
def test_a_faulty_verdict_is_refused(change: Any, message: str):
    with pytest.raises(ContractError, match=message):
        decode(NGram(), Judging(change))


class NoFlags:
    """A drafter without the attributes that say whether drafts depend on other rows."""

    want, claims = NOTHING, ()

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return Draft(TokenTree.roots(ctx.roots))

    def observe(self, step: Any) -> None: ...

    def release(self, slots: Sequence[int]) -> None: ...


@pytest.mark.parametrize(
    "parts, message",
    [
        ((NoFlags(), Match(), Fixed(1)), "NoFlags is no drafter, .* no learns_across_rows and no drafts_acr"),
        ((NGram, Match(), Fixed(1)), r"the drafter is the class NGram: give Parts an instance, NGram\(\)"),
        ((Match(), NGram(), Fixed(1)), "Match is no drafter"),
        ((NGram(), Fixed(1), Match()), "Fixed is no verifier"),
        ((NGram(), Match(), None), "NoneType is no controller"),
    ],
)
def test_a_part_without_its_attributes_is_refused(parts: tuple[Any, Any, Any], message: str):
    with pytest.raises(ContractError, match=message):
        Parts(TARGET, *parts)


def test_a_recipe_that_returns_no_parts_is_refused():
    def forgetful(target: Target, *, depth: int = 2) -> Any:
        """Builds parts and forgets to return them."""
        Parts(target, NGram(), Match(), Fixed(depth))

    made = recipe(paper="none", family="base")(forgetful)
    assert list(made.options) == ["depth"]
    with pytest.raises(TypeError, match="forgetful returned None: return Parts"):
        made(TARGET)


def test_tokens_on_an_accelerator_are_not_waited_for():
    """`tolist` of such a tensor would wait for it; the target reads it there."""

    class Away(Tensor):
        @property
        def device(self) -> torch.device:
            return torch.device("cuda")

        def tolist(self) -> Any:
            raise AssertionError("waits for the accelerator")

    tree = TokenTree(torch.tensor([1, 2]).as_subclass(Away), Forest.chain((1,)))
    parts = Parts(TARGET, Drafting(lambda _: Draft(tree)), Match(), Fixed(1))
    ctx: Any = type("Rows", (), {"roots": torch.tensor([1]), "slots": (0,), "stops": [(2,)]})()
    assert parts.propose(ctx, Plan((1,))).tree is tree
