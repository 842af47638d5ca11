"""A target without some of its sub-layers, as a draft model that shares the target's weights and KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from torch import Tensor

from outpace.core.contracts import Cache, Want
from outpace.core.tree import TokenTree
from outpace.models.eager.forward import Forward
from outpace.models.eager.skipped_modules import check_attention, check_residual, check_sharing, skip
from outpace.models.forward.kv_cache import SlotCache
from outpace.models.hf.compiling import compiled
from outpace.models.hf.target import HFTarget
from outpace.models.skip_set import SkipSet


class SlimTarget(HFTarget):
    """Implementation of core.contracts.Target and core.contracts.ReadsTargetCache: a target without the
    sub-layers of a skip set.

    With a view of the target's cache it reads draft nodes only: entries of the text before them are the whole
    model's. It runs compiled if the target is compiled for a CPU."""

    def __init__(self, target: HFTarget, skip_set: SkipSet) -> None:
        """ValueError for a skip set that does not suit the model."""
        skip_set.check(target.num_layers)
        check_attention(target.forward)
        self.__dict__.update(target.__dict__)  # the same model, limits and weights
        self.skip_set = skip_set
        self._lock, self._caches = Lock(), []
        if skip_set.attention != skip_set.mlp:
            copy = Forward(target.model)
            check_residual(copy.model, copy.one_token())
        whole = target.forward
        check_sharing(whole, skip_set)
        forward = Forward(target.model)
        skip(forward.model, skip_set, forward.one_token())
        kept = [layer for layer in whole.planes.of_layer if layer not in skip_set.attention]
        forward.planes, self._kept = whole.planes.only(kept)
        forward.packs, forward.dense = whole.packs, whole.dense
        self.forward = self.reader = forward
        self._shares_keys = whole.shares_keys
        if target.reader.outside_torch:
            self.reader = compiled(
                forward,
                trees=not self.chains_only,
                weights=self.compressed_weights,
                cache_in_8_bits=self.kv_cache is not None,
                # not torch's number of threads, which is 1 in sessions
                num_threads=target.reader.num_threads,
            )

    @property
    def carried_layer(self) -> int | None:
        """The last layer before an early exit, if the model runs eagerly: the target's forwards then begin at
        the next layer. None for other skip sets, for compiled forwards and for a target whose later layers
        read the keys and values of earlier ones: these compute all layers."""
        layers = sorted(self.skip_set.layers)
        exit_layer = layers[0] - 1 if layers else -1
        is_exit = self.skip_set == SkipSet.of_layers(range(exit_layer + 1, self.num_layers))
        is_separate = is_exit and self.reader is self.forward and not self._shares_keys
        return exit_layer if is_separate else None

    def outputs(
        self, tree: TokenTree, slots: Sequence[int], cache: Cache, layer: int
    ) -> tuple[int, Tensor]:  # (N - first, D)
        """Like `score`, but returns the outputs of a layer, without computing logits: the first node that was
        computed, and the outputs at it and all later nodes."""
        scores = self.score(tree, slots, cache, Want(hidden=frozenset({layer})), logits=False)
        return scores.first, scores.hidden[layer]

    def view(self, cache: Cache) -> SlotCache:
        """The target's cache as this model sees it. ValueError for the cache of another model."""
        return self.reader.view(cache, self._kept)
