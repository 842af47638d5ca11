"""EasySpec: what a draft in groups of layers leaves in the cache, and whose distribution it claims."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.contracts import Context, Draft, Parts, Plan, Want
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.hf.target import HFTarget
from outpace.models.slim.grouped_layers import grouped
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.reference import table_logits
from outpace.proof.suite import CAUGHT
from outpace.recipes.base.easyspec import easyspec
from outpace.sampling.target_probs import LazyTargetProbs
from tests.models.conftest import build

TARGET, DRAFT = TableTarget(3, seed=1, order=2), TableTarget(3, seed=2, order=2)
PROMPTS = [torch.tensor(text) for text in ([5, 9, 31, 7, 44, 5], [8])]


def deep_pair() -> tuple[HFTarget, HFTarget]:
    """A target, and a draft model of five layers that is a copy of it with noise."""
    model = build("llama", num_hidden_layers=5)
    noisy = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in noisy.parameters():
            weight += 0.1 * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0
    return HFTarget(model), HFTarget(noisy)


class Watched(DraftModel):
    """Notes after each draft how far the cache is from that of a clean run: the largest difference at the
    committed tokens with the root, and at the drafted ones."""

    def __init__(self, draft: HFTarget, *, keeps_drafted: bool) -> None:
        super().__init__(grouped(draft, 3), keeps_drafted=keeps_drafted)
        self._plain = draft
        self.committed, self.drafted = list[float](), list[float]()

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = super().propose(ctx, plan)
        if not draft.forwards:  # of the last token there is no draft
            return draft
        tokens, cache = draft.tree.token_list(), self.cache(ctx)
        for row, slot in enumerate(ctx.slots):
            path = draft.tree.forest.nodes[row][1:-1]  # the last node is not read
            text = torch.cat((ctx.tokens[row], torch.tensor([tokens[node] for node in path]).long()))
            clean = self._plain.open(1, len(text))
            self._plain.keep([text], [0], clean, Want())
            there, here = clean.views(0, 0, len(text)), cache.views(slot, 0, len(text))
            apart = torch.cat([(a - b).abs().amax((0, 1, 3))[None] for a, b in zip(there, here, strict=True)])
            end = ctx.committed[row]
            self.committed.append(float(apart[:, :end].max()))
            self.drafted += [float(apart[:, end:].max())] if len(path) else []
        return draft


def decode(target: HFTarget, drafter: DraftModel) -> int:
    """The number of draft tokens that were accepted in two rows."""
    parts = replace(easyspec.build(target, draft=deep_pair()[1]), drafter=drafter)
    sampling = [SamplingParams(0.6, max_tokens=24, seed=seed) for seed in (3, 4)]
    steps = list(Session(parts, PROMPTS, sampling, LazyTargetProbs).steps())
    return sum(len(tokens) - 1 for step in steps for tokens in step.generated if tokens)


@pytest.mark.slow
def test_a_draft_begins_with_the_keys_and_values_of_a_clean_run() -> None:
    target, draft = deep_pair()
    drafter = Watched(draft, keeps_drafted=False)
    assert decode(target, drafter) > 10
    assert max(drafter.committed) <= 1e-12
    assert min(drafter.drafted) > 1e-3, "drafted tokens have keys and values of the groups"
    uncalibrated = Watched(draft, keeps_drafted=True)
    assert decode(target, uncalibrated) > 10
    assert max(uncalibrated.committed) > 1e-3, "without calibration they stay"


def test_the_recipe_calibrates_and_one_layer_a_group_is_the_draft_model() -> None:
    target, draft = deep_pair()
    drafter: Any = easyspec.build(target, draft=draft).drafter
    assert not drafter._keeps_drafted and drafter.model is grouped(draft, 4)

    def drafts(**options: Any) -> tuple[list[list[int]], list[Tensor]]:
        parts, q = easyspec.build(target, draft=draft, **options), list[Tensor]()
        session = Session(parts, PROMPTS[:1], [SamplingParams(1.0, max_tokens=16, seed=5)], LazyTargetProbs)
        tokens = []
        for step in session.steps():
            tokens.append(step.draft.tree.token_list())
            if isinstance(step.draft.tree.claim, Drawn):
                q.append(step.draft.tree.claim.q)
        return tokens, q

    plain = drafts(group_size=1)
    groups = drafts(group_size=3)
    # the first draft token has the model's own distribution, the others have not
    assert torch.equal(plain[1][0][0], groups[1][0][0])
    assert (plain[1][0][1:] - groups[1][0][1:]).abs().max() > 1e-3
    assert plain[0] != groups[0]


class ClaimsUsual(DraftModel):
    """Mutant: draws from the groups' distributions and claims those of the draft model as it is."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = super().propose(ctx, plan)
        tree, claim = draft.tree, draft.tree.claim
        if not isinstance(claim, Drawn):  # nothing was drafted
            return draft
        q, tokens = claim.q.clone(), tree.token_list()
        for node, row in claim.all_draws():
            above = tree.forest.path(tree.forest.parents[node])[1:]
            text = [*ctx.tokens[tree.forest.rows[node]].tolist(), *(tokens[each] for each in above)]
            q[row] = DRAFT.logits[DRAFT.state(text)].softmax(-1)
        return replace(draft, tree=replace(tree, claim=replace(claim, q=q)))


@pytest.mark.parametrize("kind", [DraftModel, ClaimsUsual])
def test_a_claim_of_the_usual_distribution_is_caught(kind: type[DraftModel]) -> None:
    cases = [Case((0, 1, 2), SamplingParams(1.0, max_tokens=3))]

    def parts() -> Parts:
        made = easyspec.build(TARGET, draft=DRAFT, depth=3)
        return replace(made, drafter=kind(grouped(DRAFT, 4), keeps_drafted=False))

    error = largest_error(
        enumerate_distributions(parts, cases, replays=0), table_logits(TARGET.logits, TARGET.state), cases
    )
    assert error <= BOUND if kind is DraftModel else error > CAUGHT


def test_a_draft_model_with_nan_weights_is_named() -> None:
    target, draft = deep_pair()
    with torch.no_grad():
        next(draft.model.model.layers[2].mlp.parameters()).fill_(float("nan"))
    session = Session(
        easyspec.build(target, draft=draft), PROMPTS[:1], [SamplingParams(max_tokens=8)], LazyTargetProbs
    )
    with pytest.raises(ValueError, match="the draft model gave NaN or infinite logits: load it in another"):
        list(session.steps())
