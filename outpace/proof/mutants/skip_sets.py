"""Mutants of drafts made of a target's own layers, whose skip sets change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Draft, Parts, Plan, Target
from outpace.core.noise import Key, Noise
from outpace.core.tree import TokenTree
from outpace.drafters.compose.planned_rows import SelfDraft
from outpace.drafters.compose.rows import context_of_rows, joined_drafts, plan_of_rows
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import Read
from outpace.drafters.model.skip_set_drafter import SkipSetDrafter
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import closest_layers, num_layers, switching
from outpace.models.slim.reread_inputs import RereadInputs
from outpace.proof.mutants.arms import draft_probability
from outpace.recipes.self_speculation.clasp import LayerChoice
from outpace.recipes.self_speculation.swift.sibling_chain import sibling_chain
from outpace.verifiers.rejection import Rejection

original_update = RereadInputs.update


class BestDraft(SkipSetDrafter):
    """Mutant: two skip sets draft, and the draft whose tokens have the larger draft probabilities is kept,
    with its q, which is not the distribution of the most probable of two samples."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        rows = [[row] for row in range(len(ctx.slots))]
        return joined_drafts([self._best(ctx, plan, row) for row in rows], rows)

    def _best(self, ctx: Context, plan: Plan, row: Sequence[int]) -> Draft:
        sets = SkipSet.of_layers([0]), SkipSet.of_layers([1, 2])
        own, planned = context_of_rows(ctx, row), plan_of_rows(plan, row)
        drafts = [self._draft(own, planned, skip_set, [0]) for skip_set in sets]
        return max(drafts, key=lambda draft: draft_probability(draft.tree))


class MostProbableSiblings:
    """Mutant, used as the draft's noise: the first child is drawn, and its siblings are the most probable
    other tokens, recorded as drawn without replacement."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self.choose, self.flip = noise.choose, noise.flip

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:
        first = self._noise.choose(probs, key)[:, None]
        others = probs.scatter(1, first, -1)
        return torch.cat((first, others.topk(k - 1).indices), 1)


def most_probable_siblings(target: Target) -> Parts:
    """Parts that draft a chain with siblings, of which only the first is drawn."""
    model = switching(target)(SkipSet.of_layers([1]))

    def growth(ctx: Context, plan: Plan, read: Read) -> TokenTree:
        return sibling_chain(replace(ctx, noise=MostProbableSiblings(ctx.noise)), plan, read, sampled=True)

    return Parts(target, SelfDraft(DraftModel(model, growth=growth)), Rejection(), Fixed(2))


def entries_written(
    self: RereadInputs, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    """Mutant: the KV entry of the state with the most skipped layers overwrites the token's own entry, which
    the whole target computed."""
    row = self.rows[0]
    views = self.cache.views(row.slot, row.base, row.base + 1)
    for plane, states in zip(self.cache.planes.of_layer[layer_idx], (key_states, value_states), strict=True):
        views[plane].copy_(states[:, :, -1:])
    return original_update(self, key_states, value_states, layer_idx)


def chosen_layers(target: Target, drafter: type[SkipSetDrafter] = SkipSetDrafter) -> Parts:
    """Parts that choose the skipped layers anew after every step."""
    without, layers = switching(target), num_layers(target)
    choice = LayerChoice(closest_layers(target, layers // 2), layers, interval=1)
    made = drafter(lambda skip_set: DraftModel(without(skip_set)), choice, sampled=True)
    return Parts(target, SelfDraft(made), Rejection(), Fixed(2))
