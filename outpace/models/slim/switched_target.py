"""A target that skips sub-layers, other ones in each forward.

Letters: N tokens, V vocabulary size.
"""

from __future__ import annotations

from threading import Lock

import torch
from torch import Tensor

from outpace.core.contracts import Cache
from outpace.models.eager.forward import Forward
from outpace.models.eager.skipped_modules import Switch, check_attention, check_residual
from outpace.models.forward.kv_cache import EagerCache, SlotCache
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.request import ForwardRequest
from outpace.models.hf.target import HFTarget
from outpace.models.skip_set import SkipSet
from outpace.models.slim.reread_inputs import RereadInputs


class SwitchedLayers(Forward):
    """Eager forwards on one private copy of a target's model, with a skip set that may change before each
    forward: that takes microseconds, while a copy of the model takes milliseconds."""

    def __init__(self, target: HFTarget) -> None:
        """ValueError for a model that is compiled with OpenVINO, or that has no list of layers."""
        if target.reader.outside_torch:
            raise ValueError(
                "a model compiled with OpenVINO cannot skip other layers from step to step: leave out "
                "compile, or use layerskip"
            )
        check_attention(target.forward)
        if target.forward.shares_keys:
            raise ValueError(
                f"later layers of {type(target.model).__name__} read the keys and values of earlier ones, so "
                "not every layer can be skipped: use layerskip, which skips the last layers"
            )
        super().__init__(target.model)
        self._whole, whole = target.model, target.forward
        self.planes, self.packs, self.dense = whole.planes, whole.packs, whole.dense
        self.lock = Lock()
        self._switch = Switch(self.model, self.one_token())
        self._checked = False  # whether it was checked that attention and MLP can be skipped separately

    def check(self, skip_set: SkipSet) -> None:
        """ValueError if these sub-layers cannot be skipped."""
        with self.lock:
            if skip_set.attention != skip_set.mlp and not self._checked:
                copy = Forward(self._whole)
                check_residual(copy.model, copy.one_token())
                self._checked = True
            self._switch.set(skip_set)

    def without(self, skip_set: SkipSet) -> None:
        """Skip these sub-layers from now on. The caller holds the lock until it has run its forward."""
        self._switch.set(skip_set)

    @torch.no_grad()
    def reread(self, cache: EagerCache, slot: int, base: int, tokens: Tensor) -> Tensor:  # (N,) -> (N, V)
        """Logits after each of these tokens, which follow the first `base` committed tokens of a slot. The
        caller holds the lock."""
        inputs = RereadInputs(cache, slot, base, len(tokens), siblings=False, dense=self.dense)
        logits = self._run(inputs, ForwardRequest(inputs.rows, [len(tokens)], tokens)).logits
        assert logits is not None
        return logits


class SwitchedTarget(HFTarget):
    """Implementation of core.contracts.Target and core.contracts.ReadsTargetCache: a target without some of
    its sub-layers, run eagerly. Making one costs almost nothing."""

    def __init__(self, target: HFTarget, layers: SwitchedLayers, skip_set: SkipSet) -> None:
        """`layers`: of the target, shared by all skip sets. ValueError for a skip set that does not suit the
        model."""
        skip_set.check(target.num_layers)
        layers.check(skip_set)
        self.__dict__.update(target.__dict__)  # the same model, limits and weights
        self.skip_set, self._layers = skip_set, layers
        self._lock, self._caches = layers.lock, []
        self.forward = self.reader = _Chosen(layers, skip_set)

    @property
    def carried_layer(self) -> None:
        """None: the target computes all layers."""
        return None

    def view(self, cache: Cache) -> SlotCache:
        """The target's cache as this model sees it. ValueError for the cache of another model."""
        return self.reader.view(cache, ())

    def reread(self, cache: Cache, slot: int, text: Tensor, begin: int) -> Tensor:  # (T,) -> (T - begin, V)
        """Logits after each token of a committed text from index `begin` on. The KV entries of earlier tokens
        are the whole target's in this slot of its cache; nothing is written."""
        assert isinstance(cache, EagerCache)
        with self._lock:
            self._layers.without(self.skip_set)
            return self._layers.reread(cache, slot, begin, text[begin:])


class _Chosen(Forward):
    """The forwards with one skip set, which is set before each forward, under the target's lock."""

    def __init__(self, layers: SwitchedLayers, skip_set: SkipSet) -> None:
        self.__dict__.update(layers.__dict__)
        self._layers, self._skip_set = layers, skip_set

    def read(self, request: ForwardRequest, cache: SlotCache) -> ForwardOutputs:
        self._layers.without(self._skip_set)
        return super().read(request, cache)
