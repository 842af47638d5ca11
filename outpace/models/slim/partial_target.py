"""A target in whose forwards tokens may exit before the last layer: a LOSSY target, or a draft model for the
whole target."""

from __future__ import annotations

from threading import Lock

from outpace.core.contracts import Cache
from outpace.models.forward.kv_cache import EagerCache, SlotCache
from outpace.models.hf.target import HFTarget
from outpace.models.slim.partial_forward import PartialForward, Work
from outpace.models.slim.token_records import RecordingView


class PartialTarget(HFTarget):
    """Implementation of core.contracts.Target: a target with forwards in which tokens may exit before the
    last layer."""

    def __init__(self, target: HFTarget, forward: PartialForward, *, chains_only: bool = False) -> None:
        """`chains_only`: decisions about a token use the token at the preceding cache position."""
        self.__dict__.update(target.__dict__)  # the same model, limits and weights
        self._lock, self._caches = Lock(), []
        self._partial = forward
        self.chains_only = self.chains_only or chains_only
        forward.planes = forward.planes_with_records(target.forward.planes, target.model.dtype)
        self.forward = self.reader = forward

    @property
    def work(self) -> Work:
        """What the forwards have computed so far."""
        return self._partial.work

    @property
    def share_of_products(self) -> float:
        """See PartialForward."""
        return self._partial.share_of_products()


class SavingTarget(PartialTarget):
    """Implementation of core.contracts.Target and core.contracts.ReadsTargetCache: a target with the savings
    of QuickSilver.

    With its own cache it treats all tokens alike, prompts included, so its logits depend on the text alone,
    not on its division into forwards. With a view of the target's cache it reads draft nodes only."""

    @property
    def carried_layer(self) -> None:
        """None: which layers a token has passed differs between tokens."""
        return None

    def view(self, cache: Cache) -> SlotCache:
        """The target's cache as this model sees it. ValueError for the cache of another model."""
        if not isinstance(cache, EagerCache):
            raise ValueError("the layers of a target read the target's own KV cache, without --compile")
        forward = self._partial
        return RecordingView(cache, forward.num_layers, forward.record_size, self.model.dtype)


def check_eager(target: HFTarget, method: str) -> None:
    """ValueError for a compiled target, whose layers run over all tokens."""
    if target.compiled is not None:
        raise ValueError(
            f"{method} runs the target's layers over some of the tokens, which compiled forwards cannot: "
            "leave out --compile (compile=True)"
        )
