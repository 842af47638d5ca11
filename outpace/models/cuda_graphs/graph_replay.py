"""Forwards of fixed sizes as CUDA graphs, recorded once and replayed: one launch instead of hundreds of
kernel launches.

A forward covers all slots of a KV cache; rows with fewer tokens than its size, and slots without tokens, are
padded.

Letters: S slots, n tokens of each slot, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from outpace.core.contracts import Cache
from outpace.models.cuda_graphs.static_memory import MemoryPool, StaticCache, StaticInputs
from outpace.models.eager.forward import Forward
from outpace.models.forward.backend import InTorch
from outpace.models.forward.kv_cache import SlotCache
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.request import ForwardRequest

SIZES = (1, 4, 8, 16, 32, 64)  # tokens per row of the recorded forwards; longer inputs run eagerly
WARMUP_RUNS = 2  # forwards before recording, during which libraries allocate their workspaces

Run = Callable[[], Tensor]


class GraphReplay(InTorch):
    """A model's forwards as CUDA graphs on static memory. Inputs longer than the largest size, and forwards
    that need outputs other than logits, run eagerly in `forward`. ValueError if the model has attention code
    of its own or takes no position ids."""

    cache_in_8_bits = begins_later = False  # recorded forwards compute all layers

    def __init__(self, forward: Forward, record: Callable[[Run], Run]) -> None:
        if forward.dense or "position_ids" not in forward.parameters:
            raise ValueError("it has attention code or position ids of its own")
        self.forward, self.planes, self.packs = forward, forward.planes, forward.packs
        self._record = record
        self._pool = MemoryPool(self._forget)
        self._made: dict[tuple[int, int], tuple[StaticInputs, Run]] = {}  # by KV cache address and size

    @property
    def precision(self) -> torch.dtype:
        """The dtype in which the model computes."""
        return self.forward.precision

    def open(self, slots: int, capacity: int) -> StaticCache:
        """A new KV cache with `slots` slots of `capacity` cache positions each, draft nodes included."""
        return StaticCache(self._pool, self.forward.planes, slots, capacity, self.forward.device)

    def view(self, cache: Cache, kept: Sequence[int]) -> SlotCache:
        """The KV cache of a target, as this model made of the target's layers sees it."""
        return self.forward.view(cache, kept)

    def read(self, request: ForwardRequest, cache: SlotCache) -> ForwardOutputs:
        """Run one forward over the rows' tokens."""
        rows, nodes, tokens, want, sizes = (
            request.rows,
            request.nodes,
            request.tokens,
            request.want,
            request.sizes,
        )
        is_usual = request.is_plain and request.after is None and request.logits
        if not is_usual or want.hidden or want.attention or max(sizes) > SIZES[-1]:
            return self.forward.read(request, cache)
        assert isinstance(cache, StaticCache)
        size = next(size for size in SIZES if size >= max(sizes))
        fixed, run = self._made.get((cache.storages[0].data_ptr(), size)) or self._make(cache, size)
        fixed.fill(cache, rows, tokens.to(self.forward.device))
        scores = run()
        parts = zip(rows, sizes, nodes, strict=True)
        return ForwardOutputs(torch.cat([scores[row.slot, num - wanted : num] for row, num, wanted in parts]))

    def _forget(self, address: int) -> None:
        for key in [key for key in self._made if key[0] == address]:
            del self._made[key]

    def _make(self, cache: StaticCache, size: int) -> tuple[StaticInputs, Run]:
        fixed = StaticInputs.of(cache, size)

        def forward() -> Tensor:  # (S, n, V)
            fixed.masks_used = 0
            return self.forward.model(
                input_ids=fixed.ids,
                position_ids=fixed.positions,
                use_cache=True,
                return_dict=True,
                **{self.forward.cache_argument: fixed},
            ).logits

        for _ in range(WARMUP_RUNS):
            forward()
        self._made[cache.storages[0].data_ptr(), size] = made = fixed, self._record(forward)
        return made


def record_graph(forward: Run) -> Run:
    """Record the forward as a CUDA graph; returns a function that replays it. Inputs and output keep their
    addresses, so a replay overwrites the previous output."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU
        output = forward()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay
