"""Early exits of a draft model (S2D, Kavehzadeh et al. 2024). An exit after n layers gives the logits that
the model's final norm and LM head compute from the output of layer n.

Exits are named by their numbers of layers. A deeper exit continues from the output of the exit before it, so
no layer computes a token twice. Its layers may lack the KV entries of earlier tokens, for which a shallower
exit was enough: these entries are computed together, in one forward, when the deeper exit is next used or
when many are missing.

Letters: B texts, T tokens of a text, P unread tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outpace.core.contracts import Target, Want
from outpace.models.eager.forward import Forward, ForwardAfter
from outpace.models.eager.skipped_modules import check_attention, skip
from outpace.models.forward.kv_cache import SlotCache
from outpace.models.hf.target import HFTarget
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import exit_logits
from outpace.models.slim.slim_table import SlimTable
from outpace.models.table import TableTarget

LEAST = 0.4  # default threshold of the deepest exit: below this probability the draft ends
# Most tokens that an exit has processed and the next one has not, and whose hidden states are kept for it. If
# there are more, the next exit processes them even if it is not used.
MOST_WAITING = 64
CONFIG = "outpace_exits"  # exits for which a model was trained, in its config.json


class Exits(Protocol):
    """A draft model whose logits can be taken after several numbers of layers, its exits. They are numbered
    from 0, the one with the fewest layers."""

    vocab: int

    def open(self, slots: int, capacity: int) -> None:
        """Make the KV caches, or add slots to existing ones."""
        ...

    def read(
        self, index: int, texts: Sequence[Tensor], slots: Sequence[int]
    ) -> Tensor:  # B × (T_b,) -> (B, V)
        """The logits of exit `index` after these texts, each of which continues the tokens in its slot. The
        exit has not read the last token of any of them."""
        ...

    def keep(self, slot: int, length: int) -> None:
        """Forget the tokens of a slot after the first `length`."""
        ...

    def release(self, slots: Sequence[int]) -> None:
        """Forget the tokens of these slots."""
        ...

    def close(self) -> None:
        """Free the KV caches."""
        ...


def exits_of(model: Target, exits: Sequence[int]) -> Exits:
    """These exits of a model. ValueError for exits that it lacks or that are not in increasing order."""
    check_exits(exits, num_layers_of(model))
    return HFExits(model, exits) if isinstance(model, HFTarget) else TableExits(model, exits)


def check_exits(exits: Sequence[int], num_layers: int) -> None:
    """ValueError unless these are exits of a model of `num_layers` layers, in increasing order."""
    if list(exits) != sorted(set(exits)) or not exits or not 0 < exits[0] <= exits[-1] <= num_layers:
        raise ValueError(
            f"the exits are {','.join(map(str, exits)) or 'none'}: give increasing numbers of layers, from 1 "
            f"to the draft model's {num_layers}, as in {','.join(map(str, default_exits(num_layers)))}"
        )


def num_layers_of(model: Target) -> int:
    """Number of layers of a draft model. ValueError if it has none."""
    if isinstance(model, HFTarget | TableTarget):
        return model.num_layers
    raise ValueError(f"{type(model).__name__} has no layers to exit from: use a transformers model as draft")


def usual_exits(model: Target) -> tuple[int, ...]:
    """The exits that a model was trained with; else `default_exits`."""
    config = model.model.config.get_text_config() if isinstance(model, HFTarget) else None
    return tuple(getattr(config, CONFIG, None) or default_exits(num_layers_of(model)))


def default_exits(num_layers: int) -> tuple[int, ...]:
    """Half of the layers, three quarters and all, as in the paper: 6, 9 and 12 of 12."""
    return tuple(sorted({-(-num_layers // 2), -(-3 * num_layers // 4), num_layers}))


def default_thresholds(num_exits: int) -> tuple[float, ...]:
    """0.9 for the first exit, 0.1 less for each deeper one, and `LEAST` for the deepest."""
    return (*[max(LEAST, round(0.9 - 0.1 * index, 1)) for index in range(num_exits - 1)], LEAST)


class LayerRange(HFTarget):
    """Some layers of a model, which run eagerly on a KV cache for these layers only. They read `features`,
    the outputs of the layer before them, unless they are the first."""

    def __init__(self, model: HFTarget, begin: int, end: int) -> None:
        check_attention(model.forward)
        self.__dict__.update(model.__dict__)  # the same model, limits, weights and list of caches
        whole = model.forward
        forward = ForwardAfter(whole, begin - 1) if begin else Forward(model.model)
        skip(forward.model, SkipSet.of_layers(range(end, self.num_layers)), forward.one_token())
        forward.planes, _ = whole.planes.only(range(begin, end))
        forward.packs, forward.dense = whole.packs, whole.dense
        self.forward = self.reader = forward


class HFExits:
    """Implementation of `Exits` for a transformers model, which runs eagerly, even if it is compiled."""

    def __init__(self, model: HFTarget, exits: Sequence[int]) -> None:
        self.vocab, self._exits = model.vocab, tuple(exits)
        self._ranges = [LayerRange(model, begin, end) for begin, end in zip((0, *exits), exits, strict=False)]
        self._logits = exit_logits(model)
        self._caches: list[SlotCache] = []  # by exit: KV cache of the layers after the previous exit
        # by exit: slot -> (P, D) the exit's outputs at the tokens that the next exit has not read
        self._outputs: list[dict[int, Tensor]] = [{} for _ in exits]

    def open(self, slots: int, capacity: int) -> None:
        self._caches = self._caches or [layers.open(slots, capacity) for layers in self._ranges]
        for cache in self._caches:
            cache.grow(slots)

    def read(self, index: int, texts: Sequence[Tensor], slots: Sequence[int]) -> Tensor:
        states: list[Tensor] = []
        for exit_index in range(index + 1):
            lengths = self._caches[exit_index].lengths
            unread = {
                slot: text[lengths[slot] :]
                for slot, text in zip(slots, texts, strict=True)
                if lengths[slot] < len(text)
            }
            states = self._read(exit_index, unread) if unread else []
        self._read_waiting(index, texts, slots)
        return self._logits(torch.stack([outputs[-1] for outputs in states]))

    def _read(self, index: int, unread: dict[int, Tensor]) -> list[Tensor]:  # each (P, D)
        """Run the layers of an exit over its unread tokens, by slot; returns the outputs."""
        slots, tokens, layer = list(unread), list(unread.values()), self._exits[index] - 1
        features = [self._outputs[index - 1].pop(slot) for slot in slots] if index else None
        want = Want(hidden=frozenset({layer}))
        outputs = self._ranges[index].keep(tokens, slots, self._caches[index], want, features)
        states = list(outputs.hidden[layer].split([len(text) for text in tokens]))
        if index + 1 < len(self._exits):
            waiting = self._outputs[index]
            for slot, new in zip(slots, states, strict=True):
                waiting[slot] = torch.cat((waiting[slot], new)) if slot in waiting else new
        return states

    def _read_waiting(self, index: int, texts: Sequence[Tensor], slots: Sequence[int]) -> None:
        """Compute the KV entries of the exits after `index` in slots where more than MOST_WAITING tokens lack
        them: for all these tokens but the last, whose logits may be requested from a later exit next."""
        for later in range(index + 1, len(self._exits)):
            before, own, waiting = self._caches[later - 1], self._caches[later], self._outputs[later - 1]
            unread = {
                slot: text[own.lengths[slot] : before.lengths[slot] - 1]
                for slot, text in zip(slots, texts, strict=True)
                if len(waiting.get(slot, ())) > MOST_WAITING
            }
            if unread:
                last = {slot: waiting[slot][-1:] for slot in unread}
                waiting |= {slot: waiting[slot][:-1] for slot in unread}
                self._read(later, unread)
                waiting |= last

    def keep(self, slot: int, length: int) -> None:
        for cache in self._caches:
            cache.lengths[slot] = min(cache.lengths[slot], length)
        for index, waiting in enumerate(self._outputs[:-1]):
            if slot in waiting:
                read, next_read = (self._caches[at].lengths[slot] for at in (index, index + 1))
                waiting[slot] = waiting[slot][: read - next_read]

    def release(self, slots: Sequence[int]) -> None:
        for cache in self._caches:
            cache.release([slot for slot in slots if slot < len(cache.lengths)])
        for waiting in self._outputs:
            for slot in slots:
                waiting.pop(slot, None)

    def close(self) -> None:
        self._caches = []


class TableExits:
    """Implementation of `Exits` for a table model, which needs no KV cache."""

    def __init__(self, model: Target, exits: Sequence[int]) -> None:
        assert isinstance(model, TableTarget)
        self.vocab = model.vocab
        count = model.num_layers
        self._models = [
            model if num_layers == count else SlimTable(model, SkipSet.after(num_layers, count))
            for num_layers in exits
        ]

    def open(self, slots: int, capacity: int) -> None:
        """Does nothing: a table model has no KV cache."""

    def read(self, index: int, texts: Sequence[Tensor], slots: Sequence[int]) -> Tensor:
        model = self._models[index]
        return model.logits[[model.state(text.tolist()) for text in texts]]

    def keep(self, slot: int, length: int) -> None:
        """Does nothing, as `open`."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing, as `open`."""

    def close(self) -> None:
        """Does nothing, as `open`."""
