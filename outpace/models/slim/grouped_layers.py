"""A draft model whose middle layers run in groups while it drafts (EasySpec, Wu et al. 2025).

All attention sub-layers of a group read the input of the group, each through its own norm, so that they need
not wait for one another; the residual stream runs through the sub-layers in their order as usual:
a_i = attention_i(norm_i(h)) for the input h of the group, then h = h + a_i and h = h + mlp_i(norm'_i(h)) for
each of its layers. The first and the last layer run as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from outpace.core.contracts import NOTHING, Cache, Carry, Scores, Target, Want
from outpace.core.tree import TokenTree
from outpace.models.eager.forward import Forward
from outpace.models.eager.skipped_modules import check_residual
from outpace.models.forward.kv_cache import SlotCache
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.request import ForwardRequest
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableCache, TableTarget

TABLE_NOISE = 0.5  # standard deviation of the change of a table's logits below the root of a draft


class DeepDraft(Target, Protocol):
    """Annotation of recipe options: a draft model with the target's tokens, of at least four layers."""


# cached, as it takes milliseconds to copy a model's modules and to check them, and methods may be built often
_MADE: WeakKeyDictionary[HFTarget, dict[int, GroupedDraft]] = WeakKeyDictionary()


def grouped(draft: Target, group_size: int) -> GroupedDraft | GroupedTable:
    """The draft model with its middle layers in groups of at most `group_size`. ValueError for a size below
    1, and for a draft model whose layers cannot be grouped."""
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}: use 1 or more layers")
    if isinstance(draft, HFTarget):
        made = _MADE.setdefault(draft, {})
        if group_size not in made:
            made[group_size] = GroupedDraft(draft, group_size)
        return made[group_size]
    if isinstance(draft, TableTarget):
        return GroupedTable(draft, group_size)
    raise ValueError(f"{type(draft).__name__} has no layers to group: use a transformers model as draft")


def groups_of(num_layers: int, size: int, name: str) -> list[range]:
    """The layers between the first and the last in runs of `size`, of which the last may be shorter.
    ValueError if a `size` above 1 leaves no layers to run together."""
    if size > 1 and num_layers < 4:
        raise ValueError(
            f"{name} has {num_layers} layers, and the first and the last are in no group: use a draft model "
            "of at least 4 layers, or speculative-sampling"
        )
    return [range(begin, min(begin + size, num_layers - 1)) for begin in range(1, num_layers - 1, size)]


class GroupedDraft(HFTarget):
    """Implementation of core.contracts.Target. Committed tokens and the roots of drafts run through the
    layers as usual; the nodes below a root run through them in groups, which leaves other keys and values in
    the cache and other logits."""

    def __init__(self, draft: HFTarget, group_size: int) -> None:
        """ValueError for a model that is compiled or recurrent, or has too few layers or layers of
        another form."""
        name = type(draft.model).__name__
        if draft.compiled is not None:
            raise ValueError(
                f"the layers of {name} cannot be grouped in compiled forwards: load the draft model without "
                "compile (--compile)"
            )
        if draft.forward.keeps_states:
            raise ValueError(
                f"{name} has recurrent layers, which cannot be grouped: use a draft model with attention in "
                "every layer, or speculative-sampling"
            )
        groups = groups_of(draft.num_layers, group_size, name)
        self.__dict__.update(draft.__dict__)  # the same model, limits, weights, lock and caches
        if any(len(group) > 1 for group in groups):
            self.forward = self.reader = _RootsAsUsual(draft.forward, GroupedForward(draft.forward, groups))


class _RootsAsUsual(Forward):
    """The forwards of a draft model, of which those over nodes below the roots of drafts are other ones."""

    def __init__(self, usual: Forward, below: Forward) -> None:
        self.__dict__.update(usual.__dict__)
        self._usual, self._below = usual, below

    def read(self, request: ForwardRequest, cache: SlotCache) -> ForwardOutputs:
        # a draft's first forward reads its root, at the first cache position after the committed tokens
        is_below = all(row.start > row.base for row in request.rows)
        return (self._below if is_below else self._usual).read(request, cache)


class GroupedForward(Forward):
    """Forwards in which all attention sub-layers of a group of layers read the input of the group."""

    def __init__(self, whole: Forward, groups: Sequence[Sequence[int]]) -> None:
        """`whole`: the forwards of the model as it is. ValueError for layers that are not of the usual form:
        a norm before attention, the MLP behind it, each added to the residual stream."""
        super().__init__(whole.original)
        self.planes, self.packs, self.dense = whole.planes, whole.packs, whole.dense
        norms = norms_before_attention(whole, self)
        for group in groups:
            read = _GroupInput()
            norms[group[0]].register_forward_pre_hook(read.keep)
            for layer in group[1:]:
                norms[layer].register_forward_pre_hook(read.give)


class _GroupInput:
    """The input of a group in the forward in progress."""

    def __init__(self) -> None:
        self._states: Tensor | None = None

    def keep(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        (self._states,) = inputs

    def give(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor | None]:
        return (self._states,)


@torch.no_grad()
def norms_before_attention(whole: Forward, copy: Forward) -> list[nn.Module]:
    """For each layer of `copy`, which has modules of its own, the module through which alone attention reads
    the layer's input. ValueError for layers that are not of the usual form."""
    name = type(whole.model).__name__
    refusal = ValueError(
        f"the layers of {name} are not a norm, attention, a norm and an MLP behind one another, and cannot "
        "be grouped: use another draft model, such as one of Llama or Qwen, or speculative-sampling"
    )
    layers = copy.captures.layers
    if layers is None or not whole.one_state:
        raise refusal
    try:
        trial = Forward(whole.original)
        check_residual(trial.model, trial.one_token())
    except ValueError as error:
        raise refusal from error
    seen = _Inputs()
    chosen = list(layers)[: copy.captures.num_layers]
    hooks = [
        module.register_forward_hook(seen.note, with_kwargs=True)
        for layer in chosen
        for module in (layer, *layer.children())
    ]
    try:
        copy.model(**copy.one_token())
    finally:
        for hook in hooks:
            hook.remove()
    norms = [seen.only_reader(layer) for layer in chosen]
    found = [norm for norm in norms if norm is not None]
    if len(found) < len(norms):
        raise refusal
    return found


class _Inputs:
    """What modules read and returned in one forward."""

    def __init__(self) -> None:
        self._read: dict[nn.Module, Tensor] = {}
        self._returned: dict[nn.Module, Any] = {}

    def note(self, module: nn.Module, inputs: Any, given: dict[str, Any], output: Any) -> None:
        states = inputs[0] if inputs else given.get("hidden_states")
        if states is not None:
            self._read[module], self._returned[module] = states, output

    def only_reader(self, layer: nn.Module) -> nn.Module | None:
        """The sub-module that alone reads the layer's input and whose output one other alone reads; None if
        there is none, as where attention and MLP run side by side or the norm comes after attention."""
        children = [child for child in layer.children() if child in self._read]
        first = [child for child in children if self._read[child] is self._read[layer]]
        if len(first) != 1:
            return None
        second = [child for child in children if self._read[child] is self._returned[first[0]]]
        return first[0] if len(second) == 1 else None


class GroupedTable(TableTarget):
    """Implementation of core.contracts.Target: a table that has other logits below the roots of drafts.
    Impossible tokens stay impossible."""

    def __init__(self, draft: TableTarget, group_size: int) -> None:
        """ValueError for a draft model with too few layers."""
        groups = groups_of(draft.num_layers, group_size, type(draft).__name__)
        self.__dict__.update(draft.__dict__)
        noise = torch.randn(draft.logits.shape, generator=torch.Generator().manual_seed(group_size))
        changed = any(len(group) > 1 for group in groups)
        self._below = draft.logits + TABLE_NOISE * changed * noise.to(draft.logits)

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor] | None = None,
        carry: Carry | None = None,
    ) -> Scores:
        assert isinstance(cache, TableCache)
        first = cache.extend(tree, slots, gap, self)
        states = cache.states[first:]
        return Scores(first, (self._below if first else self.logits)[states], self._hidden(states, want))
