"""A drafter that fails for one request goes on drafting for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Parts, Plan, SamplingParams
from outpace.core.row_error import RowError
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.compose.planned_rows import SelfDraft
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import Growth, Read, grow
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle3.head import untrained_eagle3
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kangaroo.head import untrained_kangaroo
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import without
from outpace.proof.models import tables, transformers_models
from outpace.recipes import get
from outpace.recipes.self_speculation.kangaroo.adapter_drafter import AdapterDrafter
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.serving.guarded import GuardedDrafter
from outpace.verifiers.rejection import Rejection

VOCAB = 12
BROKEN = 1  # the slot for which the drafter fails
PROMPTS = ([3, 4, 5, 3, 4], [6, 7], [8, 9, 8])


class Failing:
    """Another drafter, except for one slot; `late`: it fails when the draft is done."""

    def __init__(self, drafter: Any, *, late: bool) -> None:
        self._drafter, self._late = drafter, late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = self._drafter.propose(ctx, plan) if self._late or BROKEN not in ctx.slots else None
        if draft is None or BROKEN in ctx.slots:
            raise RuntimeError("broken")
        return draft


def adaptive_trees() -> Parts:
    target = transformers_models(vocab=VOCAB).target
    head = HeadModel(untrained_eagle(target))
    return get("eagle2").build(target, head=head, adaptive=True, depth=2, num_nodes=4)


def lookups_or_chains() -> Parts:
    models = tables(vocab=VOCAB)
    return get("lookup-or-draft").build(models.target, draft=models.drafts[0], depth=3)


def decode(parts: Parts, drafter: Drafter) -> tuple[list[tuple[int | None, str]], dict[int, list[list[int]]]]:
    """The errors, (slot, message), and slot -> the tokens of its draft in each step."""
    errors, drafts = list[tuple[int | None, str]](), {slot: list[list[int]]() for slot in range(len(PROMPTS))}
    guarded = GuardedDrafter(drafter, VOCAB, lambda slot, error: errors.append((slot, str(error))))
    params = [SamplingParams(1.0, max_tokens=14, seed=seed) for seed in range(len(PROMPTS))]
    prompts = [torch.tensor(prompt) for prompt in PROMPTS]
    for step in Session(replace(parts, drafter=guarded), prompts, params, LazyTargetProbs).steps():
        if any(step.generated):
            for slot, nodes in zip(step.ctx.slots, step.draft.tree.forest.nodes, strict=True):
                drafts[slot].append(step.draft.tree.tokens[list(nodes[1:])].tolist())
    return errors, drafts


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("build", [adaptive_trees, lookups_or_chains])
def test_other_requests_keep_their_drafts(build: Callable[[], Parts], late: bool) -> None:
    parts = build()
    failing: Any = Failing(parts.drafter, late=late)
    errors, drafts = decode(parts, failing)
    assert errors == [(BROKEN, "broken")]
    assert not any(drafts[BROKEN]) and any(drafts[0]) and any(drafts[2])


class OutOfVocabulary(Failing):
    """Drafts a token for one slot that no target can read."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = self._drafter.propose(ctx, plan)
        if BROKEN not in ctx.slots:
            return draft
        tokens, row = draft.tree.tokens.clone(), ctx.slots.index(BROKEN)
        tokens[list(draft.tree.forest.nodes[row][1:])] = VOCAB
        return replace(draft, tree=replace(draft.tree, tokens=tokens))


def test_a_draft_that_cannot_be_read_ends_the_drafts_of_its_request_only() -> None:
    parts = lookups_or_chains()
    failing: Any = OutOfVocabulary(parts.drafter, late=True)
    [(slot, message)], drafts = decode(parts, failing)
    assert slot == BROKEN and f"token {VOCAB}, which is outside of the target's vocabulary" in message
    assert not any(drafts[BROKEN]) and any(drafts[0]) and any(drafts[2])


def eagle(target: Any, growth: Growth) -> Drafter:
    return FeatureDrafter(HeadModel(untrained_eagle(target)), VOCAB, growth, sampled=True)


def eagle3(target: Any, growth: Growth) -> Drafter:
    return FeatureDrafter(HeadModel(untrained_eagle3(target)), VOCAB, growth, sampled=True)


def kangaroo(target: Any, growth: Growth) -> Drafter:
    early = without(target, SkipSet.after(1, target.num_layers))
    return AdapterDrafter(early, HeadModel(untrained_kangaroo(target)), growth, sampled=True)


def draft_model(target: Any, growth: Growth) -> Drafter:
    return DraftModel(transformers_models(vocab=VOCAB).drafts[0], growth=growth)


def exit_of_the_target(target: Any, growth: Growth) -> Drafter:
    return SelfDraft(DraftModel(without(target, SkipSet.after(1, target.num_layers)), growth=growth))


def fails_after_a_forward(ctx: Context, plan: Plan, read: Read) -> TokenTree:
    """Chains, except for one slot from its second draft on: the model has then read tokens that were
    accepted."""

    def failing(tree: TokenTree) -> tuple[int, Tensor]:
        found = read(tree)
        for slot, committed, prompt in zip(ctx.slots, ctx.committed, ctx.prompt_lengths, strict=True):
            if slot == BROKEN and committed > prompt + 1:
                raise RuntimeError("broken")
        return found

    return grow(ctx, plan, failing)


@pytest.mark.parametrize("build", [eagle, eagle3, kangaroo, draft_model, exit_of_the_target])
def test_an_error_after_a_forward_changes_no_other_draft(build: Callable[[Any, Growth], Drafter]) -> None:
    target, found = transformers_models(vocab=VOCAB).target, []
    for growth in (grow, fails_after_a_forward):
        drafter = build(target, growth)
        found.append(decode(Parts(target, drafter, Rejection(), Fixed(3)), drafter))
    (no_errors, undisturbed), (errors, drafts) = found
    assert not no_errors and errors == [(BROKEN, "broken")]
    assert any(undisturbed[BROKEN][2:]) and not any(drafts[BROKEN][2:])
    for slot in (0, 2):
        assert drafts[slot] == undisturbed[slot] and any(drafts[slot][3:])


class FailsLater:
    """A drafter that fails for one slot after its first draft."""

    def __init__(self, drafter: Any) -> None:
        self._drafter, self._drafts = drafter, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self._drafts += 1
        if self._drafts > 1 and BROKEN in ctx.slots:
            raise RuntimeError("broken")
        return self._drafter.propose(ctx, plan)


def test_a_request_whose_text_depends_on_the_drafter_ends_where_it_fails() -> None:
    of = tables()
    parts = get("speculative-cascades").build(of.target, draft=of.drafts[0])
    found: list[tuple[int | None, Exception]] = []
    guarded = GuardedDrafter(
        FailsLater(parts.drafter), of.target.vocab, lambda slot, error: found.append((slot, error))
    )
    params = SamplingParams(1.0, max_tokens=12)
    prompts = [torch.tensor(prompt) % of.target.vocab for prompt in PROMPTS]
    session = Session(replace(parts, drafter=guarded), prompts, [params] * 3, LazyTargetProbs)
    with pytest.raises(RowError, match="the draft model failed, and this method needs it") as raised:
        list(session.steps())
    assert raised.value.slot == BROKEN and [slot for slot, _ in found] == [BROKEN]
