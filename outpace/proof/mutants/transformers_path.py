"""Mutants of the transformers path (`models/hf`): position ids, attention masks, KV cache, order of rows.

Each replaces methods of `models/hf` while a context manager is open. The distribution test on small float64
transformers models must detect it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.masking_utils import causal_mask_function

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import NOTHING, Carry, Parts, Scores, Want
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Shape, TokenTree
from outpace.drafters.compose.planned_rows import SelfDraft
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import grow
from outpace.models.eager.cache_view import EagerView
from outpace.models.eager.forward_inputs import ForwardInputs, RowMask
from outpace.models.forward.kv_cache import SlotCache
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.row_inputs import RowInputs
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kangaroo.head import untrained_kangaroo
from outpace.models.hf.target import HFTarget
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import num_layers, without
from outpace.models.slim.partial_forward import PartialRun
from outpace.models.slim.reread_inputs import RereadInputs
from outpace.models.slim.saving_forward import SavingForward
from outpace.proof.enumeration import Case, Leak, enumerate_distributions, largest_error
from outpace.proof.models import Models
from outpace.proof.mutants.skip_sets import chosen_layers, entries_written
from outpace.proof.reference import promised
from outpace.recipes.self_speculation.kangaroo.adapter_drafter import AdapterDrafter, AdapterReader
from outpace.recipes.self_speculation.quicksilver import quicksilver
from outpace.verifiers.rejection import Rejection

SHAPE = Shape.branching((2, 1))  # two siblings, each with one child
SAMPLED = SamplingParams(temperature=1.0, top_k=2, max_tokens=3)  # two possible tokens per node: few runs
CASES = (  # prompts of equal and of different lengths, decoded in one batch
    Case((0, 1, 2, 0, 1), replace(SAMPLED, max_tokens=4)),
    Case((2, 2, 1, 1, 0), replace(SAMPLED, temperature=0.7, max_tokens=2)),
    Case((1, 3), replace(SAMPLED, temperature=0.0)),
)

original_query_positions = ForwardInputs.query_positions
original_visible_nodes = ForwardInputs._sees
original_masks = ForwardInputs.masks
original_bind = ForwardInputs._bind
original_commit = SlotCache.commit
original_score = HFTarget.score
original_scores = ForwardOutputs.scores
original_present = PartialRun.present


def position_ids_off_by_one(self: ForwardInputs) -> Tensor:  # (N,)
    """Mutant: position ids of draft nodes below the root are one too large."""
    positions = [ids + (ids > row.base) for row in self.rows for ids in [original_query_positions(self, row)]]
    return torch.cat(positions)


def position_ids_by_cache_slot(self: ForwardInputs) -> Tensor:  # (N,)
    """Mutant: a node's position id is its cache position, which is one too large for the second of two
    siblings."""
    return torch.cat([torch.arange(row.start, row.end) for row in self.rows])


def sibling_visible(self: ForwardInputs, row: RowInputs, visible: Tensor) -> Tensor:
    """Mutant: a node attends to the nodes of its depth that were drafted before it."""
    assert row.depths is not None
    same_depth = row.depths[:, None] == row.depths[None, :]
    return original_visible_nodes(self, row, visible | same_depth.tril())


def window_ignored(
    self: ForwardInputs, rule: Callable[..., Tensor], reach: int | None, device: torch.device
) -> list[RowMask]:
    """Mutant: layers with a sliding window use full causal attention."""
    causal: Callable[..., Any] = causal_mask_function
    return original_masks(self, causal, None, device)


def padding_read(self: ForwardInputs) -> None:
    """Mutant: attention reads one cache position too many per row, which was not written in this forward."""
    original_bind(self)
    self._reads = [self.cache.views(row.slot, 0, row.end + 1) for row in self.rows]


def padding_visible(
    self: ForwardInputs, rule: Callable[..., Tensor], reach: int | None, device: torch.device
) -> list[RowMask]:
    """Mutant: the attention mask allows the additional cache position of `padding_read`."""
    masks = original_masks(self, rule, reach, device)
    for mask in masks:
        if mask.mask is not None:
            mask.mask = pad(mask.mask, (0, 1), value=True)
    return masks


def rows_mixed_up(self: ForwardInputs) -> None:
    """Mutant: keys and values of a row are written to the cache slot of the row before it."""
    original_bind(self)
    if len(self.rows) > 1:
        before = [row.slot for row in self.rows[-1:] + self.rows[:-1]]
        rows = list(zip(self.rows, before, strict=True))
        for row, slot in rows:
            self.cache.reserve(slot, row.end)
        self._reads = [self.cache.views(row.slot, 0, row.end) for row in self.rows]
        self._writes = [self.cache.views(slot, row.start, row.end) for row, slot in rows]


def stale_entry(self: SlotCache, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
    """Mutant: the cache entry of a rejected node stays after the accepted path."""
    original_commit(self, tree, leaf, slots)
    for node, slot in zip(leaf, slots, strict=True):
        self.lengths[slot] += node >= 0 and bool(tree.forest.children[node])


def missing_entry(self: SlotCache, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
    """Mutant: the cache entry of the last accepted node is empty."""
    original_commit(self, tree, leaf, slots)
    for node, slot in zip(leaf, slots, strict=True):
        if node >= 0 and tree.forest.depths[node]:
            for view in self.views(slot, self.lengths[slot] - 1, self.lengths[slot]):
                view.zero_()


def unread_token_skipped(
    self: HFTarget, tree: TokenTree, slots: Sequence[int], cache: SlotCache, want: Want = NOTHING, **rest: Any
) -> Scores:
    """Mutant: the first unread token of a prompt is not read."""
    if rest.get("gap") is not None:
        for slot, tokens in zip(slots, rest["gap"], strict=True):
            cache.lengths[slot] += len(tokens) > 1
        rest["gap"] = [tokens[len(tokens) > 1 :] for tokens in rest["gap"]]
    return original_score(self, tree, slots, cache, want, **rest)


def first_path(self: SlotCache, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
    """Mutant: the cache keeps the first path of the accepted length instead of the accepted path."""
    depths = tree.forest.depths
    first = [
        node if node < 0 else next(n for n in tree.forest.nodes[row] if depths[n] == depths[node])
        for row, node in enumerate(leaf)
    ]
    original_commit(self, tree, first, slots)


def scores_in_reading_order(self: ForwardOutputs, first: int, indices: Tensor | None) -> Scores:
    """Mutant: logits stay in the order of the forward's inputs (row by row), not in the order of the tree's
    nodes."""
    return original_scores(self, first, None)


def carried_from_the_parent(
    self: HFTarget, tree: TokenTree, slots: Sequence[int], cache: SlotCache, want: Want = NOTHING, **rest: Any
) -> Scores:
    """Mutant: the target continues at every node from the early layers' output at its parent."""
    if (carry := rest.get("carry")) is not None:
        parents = [max(parent, 0) for parent in tree.forest.parents]
        rest["carry"] = replace(carry, hidden=carry.hidden[parents])
    return original_score(self, tree, slots, cache, want, **rest)


def view_commits(self: EagerView, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
    """Mutant: the entry of a draft's root, which only some layers have computed, stays in the target's cache
    as one more committed entry."""
    for slot in slots:
        self.lengths[slot] += 1
    self.discard()


def missing_visible(self: PartialRun, layer: int) -> list[Tensor]:
    """Mutant: tokens attend to cache positions of tokens that exited early, which hold no keys and values."""
    return [torch.ones_like(present) for present in original_present(self, layer)]


def next_state(self: SavingForward, run: PartialRun, states: Tensor) -> Tensor:
    """Mutant: a token is fused if its state is close to the next token's, which is known only if both are
    read in one forward."""
    parts = run.by_row(states)
    return torch.cat([shifted for own in parts for shifted in (own[1:], torch.full_like(own[:1], torch.nan))])


def last_token_unread(self: AdapterReader, tree: TokenTree) -> Carry:
    """Mutant: the early layers do not read the last token of a draft, which therefore has no entries in their
    KV cache, and the target continues from zeros there."""
    states = torch.cat(self.states)
    missing = states.new_zeros(len(tree) - len(states), states.shape[1])
    return Carry(tree, self.layer, torch.cat((states, missing)))


def by_draft_model(models: Models) -> Parts:
    """A tree of two branches, drafted by a draft model."""
    return Parts(models.target, DraftModel(models.drafts[0]), Rejection(), Fixed(SHAPE))


def by_first_layer(models: Models) -> Parts:
    """A chain drafted by the target's first layer, from whose outputs the target continues."""
    model = without(models.target, SkipSet.after(1, num_layers(models.target)))
    drafter = DraftModel(model, carried_layer=model.carried_layer)
    return Parts(models.target, SelfDraft(drafter), Rejection(), Fixed(2))


def by_savings(models: Models) -> Parts:
    """A target in which some tokens halt, some are fused with the preceding token, and others run through."""
    return quicksilver.build(models.target, drift=100.0, entropy=0.9, fusion=0.6)


def by_adapter(models: Models) -> Parts:
    """A chain drafted by the target's first layer and an untrained adapter of Kangaroo."""
    target, early = models.target, SkipSet.after(1, num_layers(models.target))
    assert isinstance(target, HFTarget)
    adapter = HeadModel(untrained_kangaroo(target))
    drafter = AdapterDrafter(without(target, early), adapter, grow, sampled=True)
    return Parts(target, drafter, Rejection(), Fixed(2))


@dataclass(frozen=True)
class TransformersMutant:
    """One mutant: a mistake, and the models on which it is detected."""

    name: str
    # (class, name of the method) or (module, name of the function) -> the wrong one
    replacements: Mapping[tuple[type | ModuleType, str], Any]
    window: int | None = None  # tested on `transformers_models(window)`: sliding window in tokens
    parts: Callable[[Models], Parts] = by_draft_model  # the method that decodes

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Context manager that replaces the methods, in the whole process, and restores them at its end."""
        originals = {(owner, method): vars(owner)[method] for owner, method in self.replacements}
        try:
            for (owner, method), wrong in self.replacements.items():
                setattr(owner, method, wrong)
            yield
        finally:
            for (owner, method), original in originals.items():
                setattr(owner, method, original)

    def error(self, models: Models) -> float:
        """`decoding_error` of these models while the mutant's methods are in place."""
        with self.planted():
            return decoding_error(models, self.parts)


def decoding_error(models: Models, parts: Callable[[Models], Parts] = by_draft_model) -> float:
    """Largest error of a continuation's probability when these models decode with a method; infinity if the
    outcome of a row depends on the other rows of its batch (Leak)."""
    try:
        enumeration = enumerate_distributions(lambda: parts(models), CASES)
        return largest_error(enumeration, promised(parts(models).reference, models.logits), CASES)
    except Leak:
        return float("inf")


def transformers_mutants() -> list[TransformersMutant]:
    """All mutants of the transformers path."""
    commit, masks = (SlotCache, "commit"), (ForwardInputs, "masks")
    return [
        TransformersMutant(
            "position ids off by one", {(ForwardInputs, "positions"): position_ids_off_by_one}
        ),
        TransformersMutant(
            "position ids by cache slot", {(ForwardInputs, "positions"): position_ids_by_cache_slot}
        ),
        TransformersMutant("sibling visible", {(ForwardInputs, "_sees"): sibling_visible}),
        TransformersMutant(
            "padding visible", {(ForwardInputs, "_bind"): padding_read, masks: padding_visible}
        ),
        TransformersMutant("rows mixed up", {(ForwardInputs, "_bind"): rows_mixed_up}),
        TransformersMutant("scores in reading order", {(ForwardOutputs, "scores"): scores_in_reading_order}),
        TransformersMutant("rejected node kept in the cache", {commit: stale_entry}),
        TransformersMutant("accepted node missing in the cache", {commit: missing_entry}),
        TransformersMutant("unread token skipped", {(HFTarget, "score"): unread_token_skipped}),
        TransformersMutant("wrong path committed", {commit: first_path}),
        TransformersMutant("sliding window ignored", {masks: window_ignored}, window=3),
        TransformersMutant(
            "early layers' output of the parent",
            {(HFTarget, "score"): carried_from_the_parent},
            parts=by_first_layer,
        ),
        TransformersMutant(
            "entries of early layers committed", {(EagerView, "commit"): view_commits}, parts=by_first_layer
        ),
        TransformersMutant(
            "entries of tried layers kept in the cache",
            {(RereadInputs, "update"): entries_written},
            parts=lambda models: chosen_layers(models.target),
        ),
        TransformersMutant(
            "missing entries visible", {(PartialRun, "present"): missing_visible}, parts=by_savings
        ),
        TransformersMutant(
            "fused with the next token", {(SavingForward, "_before"): next_state}, parts=by_savings
        ),
        TransformersMutant(
            "last token not read by the early layers",
            {(AdapterReader, "carry"): last_token_unread},
            parts=by_adapter,
        ),
    ]
