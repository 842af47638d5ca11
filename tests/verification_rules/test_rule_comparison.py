"""Expectations over recorded trees agree with those over everything, and no rule exceeds its bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.verification_rules import expected_kept
from benchmarks.verification_rules.comparison import (
    DISTINCT,
    DRAFTING,
    GREEDY_LAST,
    INDEPENDENT,
    RULES,
    Recorder,
    suited,
)
from benchmarks.verification_rules.expected_kept import (
    ExpectedAcceptance,
    expected_acceptance,
    expected_acceptance_of_matching,
)
from benchmarks.verification_rules.tree_bounds import LengthBounds, length_bounds
from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.contracts import Parts, Scores, Step, TargetProbs
from outpace.core.noise import KeyedNoise, Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Shape, TokenTree
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import grow
from outpace.models.table import TableTarget
from outpace.proof.enumerated_noise import Branch, EnumeratedNoise
from outpace.proof.expected_acceptance import expected_accepted
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection

Drafted = tuple[TokenTree, TargetProbs, Scores]
WIDTHS = [(1, 1), (2,), (2, 2), (3, 1)]


def pair(seed: int, vocab: int = 3) -> tuple[TableTarget, TableTarget]:
    return TableTarget(vocab, seed=seed, order=2), TableTarget(vocab, seed=seed + 100, order=2)


def drafted(
    target: TableTarget, draft: TableTarget, widths: Sequence[int], drafting: str, noise: Any = KeyedNoise
) -> Drafted:
    """One tree after the token 0, and the target's distribution on it."""
    found: list[Drafted] = []

    def draft_only(session: Session) -> Iterator[Step]:
        ctx = session.context()
        tree = session.parts.drafter.propose(ctx, session.parts.controller.plan(ctx)).tree
        scores = target.score(tree, ctx.slots, session.cache)
        found.append((tree, session.target_probs(scores, tree, ctx), scores))
        yield from ()

    drafter, plan = (
        DraftModel(draft, growth=partial(grow, children=DRAFTING[drafting])),
        Fixed(Shape.branching(widths)),
    )
    parts = Parts(target, drafter, Rejection(), plan)
    sampling = [SamplingParams(temperature=1.0, max_tokens=len(widths) + 1)]
    session = Session(parts, [torch.tensor([0])], sampling, LazyTargetProbs, noise=noise)
    assert not list(session.steps(draft_only))
    return found[0]


def every_draft(
    target: TableTarget, draft: TableTarget, widths: Sequence[int], drafting: str
) -> Iterator[tuple[float, Drafted]]:
    """Every tree that can be drafted, with its probability."""
    pending = [Branch((), 0)]
    while pending:
        branch = pending.pop()

        def noise(
            seeds: Sequence[int], turns: Sequence[int], lengths: Sequence[int], branch: Branch = branch
        ) -> Noise:
            return EnumeratedNoise([branch], turns, lengths)

        found = drafted(target, draft, widths, drafting, noise)
        yield branch.probability, found
        pending += [Branch(script, 0) for script in branch.left_open]


def over_everything(
    target: TableTarget, draft: TableTarget, widths: Sequence[int], drafting: str, verifier: Any
) -> float:
    shape = Shape.branching(widths)
    return expected_accepted(
        lambda: Parts(
            target,
            DraftModel(draft, growth=partial(grow, children=DRAFTING[drafting])),
            verifier,
            Fixed(shape),
        ),
        len(widths),
    )


@pytest.mark.parametrize("widths", [(1, 1), (2,), pytest.param((2, 1), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("drafting", DRAFTING)
def test_the_mean_over_drafts_is_the_expectation_over_everything(
    drafting: str, widths: tuple[int, ...]
) -> None:
    target, draft = pair(3)
    drafts = list(every_draft(target, draft, widths, drafting))
    assert sum(probability for probability, _ in drafts) == pytest.approx(1, abs=1e-12)
    for verifier in (Rejection(), Match()):
        mean = sum(probability * expected_acceptance(verifier, *found).depth for probability, found in drafts)
        assert mean == pytest.approx(over_everything(target, draft, widths, drafting, verifier), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("drafting", DRAFTING)
def test_no_rule_keeps_more_than_its_bound(drafting: str, widths: tuple[int, ...]) -> None:
    drafts = list(every_draft(*pair(0), widths, drafting))
    bounds = [
        (probability, length_bounds(tree, distribution)) for probability, (tree, distribution, _) in drafts
    ]
    for rule in suited(RULES, drafting, widths):
        kept = [(probability, rule.acceptance(*found)) for probability, found in drafts]
        limit = sum(c * (b.any_rule if rule.whole_paths else b.node_by_node) for c, b in bounds)
        assert sum(c * k.depth for c, k in kept) <= limit + 1e-12
        assert sum(c * k.any for c, k in kept) <= sum(c * b.first_token for c, b in bounds) + 1e-12
    # here rejection is the best rule that settles node by node
    if drafting == GREEDY_LAST or max(widths) == 1:
        mean = sum(
            probability * expected_acceptance(Rejection(), *found).depth for probability, found in drafts
        )
        assert mean == pytest.approx(
            sum(probability * b.node_by_node for probability, b in bounds), abs=1e-12
        )


def test_the_bound_of_any_rule_on_a_chain_is_the_overlap_of_whole_paths() -> None:
    target, draft = TableTarget(2, order=1), TableTarget(2, order=1)
    p, q = torch.tensor([[1 / 3, 2 / 3], [2 / 3, 1 / 3]], dtype=torch.float64)
    target.logits, draft.logits = (distribution.log().expand(4, -1).contiguous() for distribution in (p, q))
    drafts = every_draft(target, draft, (1, 1), DISTINCT)
    bounds = [
        (probability, length_bounds(tree, distribution)) for probability, (tree, distribution, _) in drafts
    ]
    assert sum(c * b.any_rule for c, b in bounds) == pytest.approx(2 / 3 + 6 / 9, abs=1e-12)
    assert sum(c * b.node_by_node for c, b in bounds) == pytest.approx(10 / 9, abs=1e-12)


@pytest.mark.parametrize("drafting", DRAFTING)
def test_matching_in_closed_form(drafting: str) -> None:
    tree, distribution, scores = drafted(*pair(5, 4), (3, 2), drafting)
    found, wanted = (
        expected_acceptance_of_matching(tree, distribution),
        expected_acceptance(Match(), tree, distribution, scores),
    )
    assert (found.depth, found.any) == pytest.approx((wanted.depth, wanted.any), abs=1e-12)


@pytest.mark.parametrize("drafting", [DISTINCT, INDEPENDENT, GREEDY_LAST])
@pytest.mark.parametrize("widths", [(2, 1), (1, 1)], ids=str)
def test_tokens_outside_the_draft_are_one_option_for_every_rule(
    drafting: str, widths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = (TableTarget(expected_kept.FEW + 6, seed=seed, order=1) for seed in (1, 2))
    found = drafted(target, draft, widths, drafting)
    rules = suited(RULES, drafting, widths)
    few = [rule.acceptance(*found) for rule in rules]
    monkeypatch.setattr(expected_kept, "FEW", 10**9)
    for rule, kept in zip(rules, few, strict=True):
        whole = rule.acceptance(*found)
        assert (kept.depth, kept.any) == pytest.approx((whole.depth, whole.any), abs=1e-12), rule.name


def record(most: int, prompts: Sequence[Sequence[int]] = ((0, 1), (2,)), **options: Any) -> Recorder:
    target, draft = pair(7, 5)
    recorder = Recorder(draft, (2, 1), **options)
    sampling = [SamplingParams(temperature=1.0, seed=index) for index in range(len(prompts))]
    recorder.write(target, [torch.tensor(prompt) for prompt in prompts], sampling, most)
    return recorder


def test_contexts_are_shared_among_the_prompts() -> None:
    calls: list[int] = []
    found = record(6, stride=2, after=lambda: calls.append(1)).found
    assert [(each.prompt, each.position) for each in found] == [
        (0, 0),
        (0, 2),
        (0, 4),
        (1, 0),
        (1, 2),
        (1, 4),
    ]
    assert len(calls) == 6
    for each in found:
        assert set(each.kept) == set(each.bounds) == set(DRAFTING)
        assert all(isinstance(bounds, LengthBounds) for bounds in each.bounds.values())
        assert all(
            isinstance(kept, ExpectedAcceptance) and 0 <= kept.depth <= 2
            for kept in each.kept[DISTINCT].values()
        )


def test_the_same_seed_records_the_same_trees() -> None:
    assert record(4).found == record(4).found


def test_a_rule_for_chains_is_left_out_of_trees() -> None:
    chains = [rule.__class__("chain", rule.acceptance, (DISTINCT,), chains_only=True) for rule in RULES[:1]]
    assert suited(chains, DISTINCT, (1, 1)) and not suited(chains, DISTINCT, (2, 1))
    assert not suited(chains, INDEPENDENT, (1, 1))


@pytest.mark.parametrize("widths", [(1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("drafting", DRAFTING)
def test_no_rule_writes_to_the_distributions_it_reads(drafting: str, widths: tuple[int, ...]) -> None:
    tree, target_probs, scores = drafted(*pair(1), widths, drafting)
    assert isinstance(tree.claim, Drawn)
    p, q = target_probs.probs(None).clone(), tree.claim.q.clone()
    for rule in suited(RULES, drafting, widths):
        rule.acceptance(tree, target_probs, scores)
        assert torch.equal(target_probs.probs(None), p) and torch.equal(tree.claim.q, q), rule.name
