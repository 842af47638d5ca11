"""Mutants of the forwards of recurrent layers: which states a forward begins with, after draft tokens were
discarded. The distribution test on `proof.models.recurrent_models` must detect them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.eager import recurrent_forward
from outpace.models.eager.recurrent_cache import RecurrentCache
from outpace.models.eager.recurrent_forward import RecurrentForward
from outpace.models.eager.recurrent_layer import RowReading
from outpace.models.eager.recurrent_states import LayerStates, States
from outpace.proof.models import Models
from outpace.proof.mutants.transformers_path import TransformersMutant
from outpace.verifiers.rejection import Rejection

original_states_before = RecurrentCache.states_before
original_states = RecurrentForward._states
original_reading = RecurrentForward._reading


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


def by_draft_model(models: Models) -> Parts:
    """A chain of a draft model with a recurrent layer."""
    return Parts(models.target, DraftModel(models.drafts[0]), Rejection(), Fixed(2))


def recurrent_mutants() -> list[TransformersMutant]:
    """All mutants of the forwards of recurrent layers."""
    wrong = {
        "states after discarded tokens": ((RecurrentCache, "states_before"), states_after_discarded_tokens),
        "states before the draft": ((RecurrentForward, "_states"), states_before_the_draft),
        "last accepted token not read": ((RecurrentForward, "_states"), last_accepted_token_not_read),
        "states of the first row": ((RecurrentForward, "_reading"), states_of_the_first_row),
        "states changed in place": ((recurrent_forward, "copied"), uncopied),
    }
    return [
        TransformersMutant(name, {place: function}, parts=by_draft_model)
        for name, (place, function) in wrong.items()
    ]
