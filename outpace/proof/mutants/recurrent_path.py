"""Mutants of the forwards of recurrent layers: which states a forward begins with, after draft tokens were
discarded, and which states the nodes of a tree are read from. The distribution test on
`proof.models.recurrent_models` must detect them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.eager import delta_product, mamba2_product, recurrent_forward
from outpace.models.eager.delta_product import Read
from outpace.models.eager.recurrent_cache import Record, RecurrentCache
from outpace.models.eager.recurrent_forward import RecurrentForward
from outpace.models.eager.recurrent_layer import RowReading, Siblings, TreeReading
from outpace.models.eager.recurrent_states import LayerStates, States
from outpace.models.eager.recurrent_tree import tree_reading
from outpace.models.eager.tree_product import NodesOfTree
from outpace.models.forward.row_inputs import RowInputs
from outpace.models.hf.target import HFTarget
from outpace.proof.models import Models, RecurrentCode
from outpace.proof.mutants.transformers_path import TransformersMutant, by_draft_model
from outpace.verifiers.rejection import Rejection

original_states_before = RecurrentCache.states_before
original_states = RecurrentForward._states
original_reading = RecurrentForward._reading
original_nodes = NodesOfTree.__init__


def states_after_discarded_tokens(self: RecurrentCache, slot: int, position: int) -> States | None:
    """Mutant: the next forward begins with the states after all tokens of the last one, the discarded ones
    included."""
    known = self._states.get(slot, [])
    return States(position, known[-1].layers) if known else None


def states_before_the_draft(
    self: RecurrentForward, cache: RecurrentCache, slot: int, position: int
) -> States:
    """Mutant: if draft tokens were discarded, recurrent layers do not read the accepted ones again."""
    last = original_states_before(cache, slot, position)
    return original_states(self, cache, slot, position) if last is None else States(position, last.layers)


def last_accepted_token_not_read(
    self: RecurrentForward, cache: RecurrentCache, slot: int, position: int
) -> States:
    """Mutant: recurrent layers read the accepted tokens again except for the last one."""
    last = original_states_before(cache, slot, position)
    if last is None or last.position == position:
        return original_states(self, cache, slot, position)
    short = original_states(self, cache, slot, max(last.position, position - 1))
    return States(position, short.layers)


def uncopied(layers: LayerStates) -> LayerStates:
    """Mutant: a forward changes the states in place that should be kept in case its tokens are discarded."""
    return layers


def states_of_the_first_row(
    self: RecurrentForward, rows: Sequence[RowReading]
) -> AbstractContextManager[None]:
    """Mutant: all rows of a batch begin with the states of the first one."""
    return original_reading(self, [replace(row, states=rows[0].states) for row in rows])


def siblings_in_turn(row: RowInputs, records: Sequence[Record], products: Collection[int]) -> None:
    """Mutant: the nodes of a tree are read as a chain, each from the states after the node before it."""


def states_of_the_parents_sibling(
    row: RowInputs, records: Sequence[Record], products: Collection[int]
) -> TreeReading | None:
    """Mutant: all nodes of a level are read from the states after the first node of the level before."""
    tree = tree_reading(row, records, products)
    if tree is None:
        return None
    levels = [
        [replace(siblings, parents=torch.zeros_like(siblings.parents)) for siblings in level]
        for level in tree.levels
    ]
    return replace(tree, levels=levels)


def states_of_the_root(
    row: RowInputs, records: Sequence[Record], products: Collection[int]
) -> TreeReading | None:
    """Mutant: nodes of all levels are read from the states that those of the first level are read from."""
    tree = tree_reading(row, records, products)
    if tree is None:
        return None
    tokens = torch.cat([each.tokens for level in tree.levels for each in level if each.calls is None])
    return replace(tree, levels=[[Siblings(tokens, torch.zeros_like(tokens))]])


def product_over_siblings(self: NodesOfTree, parents: Sequence[int]) -> None:
    """Mutant: the product over a tree has a node's siblings on its path."""
    original_nodes(self, parents)
    self.ancestors = torch.ones_like(self.ancestors).tril()


def convolution_over_siblings(self: NodesOfTree, width: int) -> Tensor:
    """Mutant: the convolution of a node reads the nodes before it, in place of those on its path."""
    return torch.arange(1, width + 1) + torch.arange(len(self.ancestors))[:, None]


def convolution_not_followed(states: LinearAttentionLayer, inputs: Tensor) -> None:
    """Mutant: accepted tokens change the state of the recurrence, but not the inputs of the convolution."""


def writing_alone(self: Read) -> Tensor:
    """Mutant: the delta rule compares a node's value with what the state before the tree holds at its key,
    and leaves out what the nodes above it have added there."""
    return self.rates * (self.values - self.decays * (self.keys @ self.state))


def first_nodes_read_again(self: RecurrentCache, slot: int, path: Sequence[int]) -> None:
    """Mutant: recurrent layers read the first nodes of a tree again in place of the accepted ones."""


def by_chain(models: Models) -> Parts:
    """A chain of a draft model with a recurrent layer."""
    return Parts(models.target, DraftModel(models.drafts[0]), Rejection(), Fixed(2))


def by_long_chain(models: Models) -> Parts:
    """A chain of three draft tokens. The probability of the third depends on the state after the second, and
    so on what the delta rule added for the first; in shorter chains no such error shows."""
    return Parts(models.target, DraftModel(models.drafts[0]), Rejection(), Fixed(3))


def by_levels(models: Models) -> Parts:
    """A tree that no layer reads in one product."""
    assert isinstance(models.target, HFTarget) and isinstance(models.target.forward, RecurrentForward)
    models.target.forward.products = ()
    return by_draft_model(models)


def recurrent_mutants(code: RecurrentCode) -> list[TransformersMutant]:
    """Mistakes in the forwards of recurrent layers, by the models of `recurrent_models(code)` on which they
    are detected. "bamba" (Mamba 2): in chains, in trees that are read level by level, and in the product of
    Mamba 2. "qwen3_5": in the product of the gated delta rule."""
    if code == "qwen3_5":
        of_delta_rule = {
            "writing without the nodes above": ((Read, "written"), property(writing_alone)),
            "convolution of the delta rule not followed": (
                (delta_product, "follow_convolution"),
                convolution_not_followed,
            ),
        }
        return _mutants(of_delta_rule, by_long_chain)
    reading = (recurrent_forward, "tree_reading")
    in_chains = {
        "states after discarded tokens": ((RecurrentCache, "states_before"), states_after_discarded_tokens),
        "states before the draft": ((RecurrentForward, "_states"), states_before_the_draft),
        "last accepted token not read": ((RecurrentForward, "_states"), last_accepted_token_not_read),
        "states of the first row": ((RecurrentForward, "_reading"), states_of_the_first_row),
        "states changed in place": ((recurrent_forward, "copied"), uncopied),
    }
    by_level = {
        "states after the sibling": (reading, siblings_in_turn),
        "states after the parent's sibling": (reading, states_of_the_parents_sibling),
        "states after the root at every level": (reading, states_of_the_root),
        "first nodes read again": ((RecurrentCache, "_follow"), first_nodes_read_again),
    }
    in_product = {
        "product over siblings": ((NodesOfTree, "__init__"), product_over_siblings),
        "convolution over siblings": ((NodesOfTree, "windows"), convolution_over_siblings),
        "convolution not followed": ((mamba2_product, "follow_convolution"), convolution_not_followed),
    }
    return [
        *_mutants(in_chains, by_chain),
        *_mutants(by_level, by_levels),
        *_mutants(in_product, by_draft_model),
    ]


def _mutants(
    wrong: Mapping[str, tuple[tuple[type | ModuleType, str], Any]], parts: Callable[[Models], Parts]
) -> list[TransformersMutant]:
    return [TransformersMutant(name, {place: made}, parts=parts) for name, (place, made) in wrong.items()]
