"""Proofs of recipes by others: GREEDY ones, mistakes that one batch of requests does not show, and reports
that name the mistake."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from outpace.cli.commands.audit import proofs
from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import (
    Context,
    Draft,
    Guarantee,
    Noise,
    Parts,
    Plan,
    Recipe,
    Scores,
    Target,
    TargetProbs,
    TokenTree,
    Verdict,
    Want,
    recipe,
)
from outpace.core.grower import Grower
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.no_draft import NoDraft
from outpace.proof import suite
from outpace.proof.models import peaked_tables, tables
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


class Typical:
    """A GREEDY verifier: accepts every token whose target probability exceeds a threshold."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Claim,)
    guarantee = Guarantee.GREEDY

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        forest, tokens, leaves = tree.forest, tree.tokens.tolist(), list[int]()
        for node in range(forest.num_rows):
            while below := forest.children[node]:
                p = target_probs.probs([node])[0]
                if float(p[tokens[below[0]]]) <= self._threshold:
                    break
                node = below[0]
            leaves.append(node)
        return Verdict(leaves, target_probs.choose(leaves, noise))


def greedy_with(threshold: float) -> Recipe:
    def typical(target: Target, *, draft: Target, depth: int = 3) -> Parts:
        return Parts(target, DraftModel(draft, sampled=False), Typical(threshold), Fixed(depth))

    return recipe(paper="none", family="verification", guarantee=Guarantee.GREEDY)(typical)


@pytest.mark.slow
def test_a_greedy_method_is_proven_at_temperature_0():
    small = replace(suite.PLANS["peaked"], most=200, most_varied=100)
    found = list(suite.prove(greedy_with(0.3), peaked_tables(), small))
    assert {proof.verdict for proof in found} == {"exact at temperature 0"}
    assert all(proof.holds and proof.temperatures == (0.0,) for proof in found)
    assert found[0].accepted > 0 and found[0].allowed == 3


def test_a_method_that_is_not_even_greedy_is_wrong():
    assert suite.prove_default(greedy_with(-1.0), peaked_tables()).verdict == "WRONG"


class Forgetful(NGram):
    """Keeps the length of the longest text of each slot, also of ended requests, and drafts nothing in
    shorter ones."""

    def __init__(self) -> None:
        super().__init__(2, allow_shorter=True)
        self._longest: dict[int, int] = {}

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        depths = list(plan.depth)
        for row, (slot, length) in enumerate(zip(ctx.slots, ctx.committed, strict=True)):
            if length < self._longest.get(slot, 0):
                depths[row] = 0
            self._longest[slot] = max(length, self._longest.get(slot, 0))
        return super().propose(ctx, replace(plan, depth=tuple(depths)))


def test_state_that_is_not_released_is_a_fault():
    @recipe(paper="none", family="base")
    def forgetful(target: Target, *, depth: int = 3) -> Parts:
        return Parts(target, Forgetful(), Match(), Fixed(depth))

    assert "forget the state of `slots` in `release`" in suite.prove_default(forgetful, tables()).verdict


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_claim_whose_q_does_not_sum_to_1_is_named(factor: float):
    class Scaled(NoDraft):
        claims: tuple[type[Claim], ...] = (Drawn,)

        def propose(self, ctx: Context, plan: Plan) -> Draft:
            grower, at = Grower(ctx.roots), [row for row, depth in enumerate(plan.depth) if depth]
            if at:
                q = torch.full((len(at), 3), factor / 3, dtype=torch.float64)
                grower.add_drawn(at, q, 1, ctx.noise)
            return Draft(grower.tree())

    @recipe(paper="none", family="base")
    def scaled(target: Target, *, depth: int = 1) -> Parts:
        return Parts(target, Scaled(), Rejection(), Fixed(depth))

    verdict = suite.prove_default(scaled, tables()).verdict
    assert verdict.startswith(
        f"FAILED: row 0 of q in the claim sums to {factor:.4g} and its least number is "
    )
    assert f"{factor / 3:.4g}: q is" in verdict


RAISES = '''"""Raises (Nobody 2026): an exception in a later step."""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.no_draft import NoDraft
from outpace.verifiers.match import Match


class Raising(NoDraft):
    def propose(self, ctx, plan):
        return {}[3]


@recipe(paper="none", family="base")
def raises(target: Target) -> Parts:
    return Parts(target, Raising(), Match(), Fixed(1))
'''


def test_an_exception_in_a_recipe_is_reported_with_its_place(tmp_path: Any):
    file = tmp_path / "raises.py"
    file.write_text(RAISES)
    (report,) = proofs(str(file), "table", False)
    assert report["verdict"] == "FAILED: KeyError: 3 (raises.py, line 11; --debug shows more)"
    assert not report["holds"]
    with pytest.raises(KeyError):
        proofs(str(file), "table", False, debug=True)
