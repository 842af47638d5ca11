"""A separate drafter for every row: drafts are complete, and no row learns from another."""

from __future__ import annotations

import pytest
import torch

from outpace.core.claim import Drawn
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.proof.enumeration import Case, Leak, enumerate_distributions
from outpace.proof.per_row_drafter import Apart, row_by_row
from outpace.recipes.training_free.token_recycling import token_recycling
from outpace.recipes.verification.mcsd import mcsd
from outpace.sampling.target_probs import LazyTargetProbs

TARGET, DRAFT = TableTarget(5, seed=1), TableTarget(5, seed=2, order=2)
PROMPTS = [[0, 1, 2], [3], [4, 4]]
SAMPLING = [
    SamplingParams(1.0, max_tokens=12, seed=1),
    SamplingParams(0.7, max_tokens=9, seed=2),
    SamplingParams(max_tokens=12),
]


def drafts(parts: Parts) -> list[tuple[tuple[int, ...], list[list[tuple[int, int, list[float]]]]]]:
    """Per step the slots, and of every row's nodes the token, the parent and the distribution drawn from."""
    found = []
    for step in Session(
        parts, [torch.tensor(prompt) for prompt in PROMPTS], SAMPLING, LazyTargetProbs
    ).steps():
        tree, forest = step.draft.tree, step.draft.tree.forest
        claim, tokens = tree.claim, tree.tokens.tolist()

        def distribution(node: int, claim: object = claim) -> list[float]:
            return (
                claim.q[claim.row[node]].tolist() if isinstance(claim, Drawn) and claim.row[node] >= 0 else []
            )

        rows = [
            [
                (tokens[node], forest.local[forest.parents[node]] if index else -1, distribution(node))
                for index, node in enumerate(row)
            ]
            for row in forest.nodes
        ]
        found.append((step.ctx.slots, rows))
    return found


@pytest.mark.parametrize("replace", [False, True])
def test_drafters_apart_draft_what_one_drafts_for_all(replace: bool) -> None:
    together = mcsd.build(TARGET, draft=DRAFT, widths=(2, 2), replace=replace)
    parts = mcsd.build(TARGET, draft=DRAFT, widths=(2, 2), replace=replace)
    apart = Parts(
        TARGET,
        Apart(parts.drafter, lambda: DraftModel(DRAFT, replace=replace)),
        parts.verifier,
        parts.controller,
    )
    assert drafts(apart) == drafts(together)


def test_only_shared_drafters_are_set_apart() -> None:
    assert isinstance(row_by_row(lambda: mcsd.build(TARGET, draft=DRAFT))().drafter, DraftModel)
    assert isinstance(row_by_row(lambda: token_recycling.build(TARGET))().drafter, Apart)


@pytest.mark.slow
def test_rows_that_teach_one_another_cannot_be_replayed() -> None:
    cases = [Case((0, 1), SamplingParams(1.0, max_tokens=4)), Case((2,), SamplingParams(1.0, max_tokens=4))]
    target = TableTarget(3, seed=1)
    enumerate_distributions(row_by_row(lambda: token_recycling.build(target)), cases)
    with pytest.raises(Leak):
        enumerate_distributions(lambda: token_recycling.build(target), cases)
