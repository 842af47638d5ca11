"""What runs the forwards of a model: transformers, OpenVINO or CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outpace.core.contracts import Cache, Choose, Ends
from outpace.models.forward.kv_cache import Planes, SlotCache
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.request import ForwardRequest


class Backend(Protocol):
    """Runs the forwards of one model on KV caches of its own kind."""

    planes: Planes  # of its KV caches
    packs: bool  # whether one forward can read several rows

    @property
    def outside_torch(self) -> bool:
        """Whether the model runs outside of torch: its layers cannot be changed, and its threads are not
        those of torch."""
        ...

    @property
    def begins_later(self) -> bool:
        """Whether forwards may begin after a layer (`ForwardRequest.after`)."""
        ...

    @property
    def cache_in_8_bits(self) -> bool:
        """Whether its KV caches hold keys and values in 8 bits."""
        ...

    @property
    def num_threads(self) -> int:
        """Number of threads of forwards on a CPU."""
        ...

    @property
    def seconds(self) -> float:
        """Time that compiling took."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Numbers of tokens to which forwards are padded; empty: they are not padded."""
        ...

    @property
    def chain_sizes(self) -> Sequence[int]:
        """The same for forwards over a single sequence whose draft is a chain."""
        ...

    @property
    def precision(self) -> torch.dtype:
        """The dtype in which the model computes."""
        ...

    def open(self, slots: int, capacity: int) -> SlotCache:
        """A new KV cache with `slots` slots of `capacity` cache positions each, draft nodes included."""
        ...

    def view(self, cache: Cache, kept: Sequence[int]) -> SlotCache:
        """A view of a target's KV cache for this model, which consists of layers of that target; `kept`: the
        target's planes that these layers have. ValueError for a KV cache of another kind."""
        ...

    def read(self, request: ForwardRequest, cache: SlotCache) -> ForwardOutputs:
        """Run the request's tokens through the model, in one forward if possible, and store their keys and
        values; returns the outputs of the last `nodes[i]` tokens of each row i. ValueError if the model does
        not support the request."""
        ...

    def read_chain(
        self,
        request: ForwardRequest,
        cache: SlotCache,
        depth: int,
        choose: Choose | None,
        ends: Ends | None = None,
    ) -> tuple[list[int], Tensor] | None:
        """Run the request, whose tokens follow each other in one row, then one forward for each of up to
        `depth` - 1 further tokens, each chosen from the preceding logits; see core.contracts.ReadsChains.
        None if this backend is no faster at that than with single forwards."""
        ...


class InTorch:
    """Base class of backends that run the model in torch."""

    outside_torch = False
    sizes: tuple[int, ...] = ()
    chain_sizes: tuple[int, ...] = ()
    seconds = 0.0  # CUDA graphs are captured at their first use

    @property
    def num_threads(self) -> int:
        return torch.get_num_threads()

    def read_chain(
        self,
        request: ForwardRequest,
        cache: SlotCache,
        depth: int,
        choose: Choose | None,
        ends: Ends | None = None,
    ) -> None:
        """None: chains are read forward by forward."""
