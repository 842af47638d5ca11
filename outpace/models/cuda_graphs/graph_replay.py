"""Forwards of fixed sizes on memory that stays, recorded once on a GPU and replayed: a step starts one graph
instead of some hundred kernels.

All slots of a cache are read at once, whether they have something to read or not; a row that has less than
the forward's size is filled up with tokens that nobody sees.

Letters: S slots, n tokens of each, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outpace.core.contracts import Want
from outpace.models.cuda_graphs.static_memory import Fixed, FixedCache, Pool
from outpace.models.hf.forward import Forward
from outpace.models.hf.forward_inputs import RowInputs
from outpace.models.hf.forward_outputs import ForwardOutputs
from outpace.models.hf.kv_cache import SlotCache

SIZES = (1, 4, 8, 16, 32, 64)  # tokens of a row; what is longer is read as it is
WARM = 2  # runs before one is recorded, in which libraries allocate what they need

Run = Callable[[], Tensor]


class GraphReplay:
    """A model's forwards on fixed memory; what is longer, or wants more than logits, is read by `forward`."""

    def __init__(self, forward: Forward, record: Callable[[Run], Run]) -> None:
        if forward.dense or "position_ids" not in forward.parameters:
            raise ValueError("it computes its attention or its positions itself")
        self.forward, self.packs, self._record = forward, forward.packs, record
        self._pool = Pool()
        self._made: dict[tuple[int, int], tuple[Fixed, Run]] = {}  # by the memory's address and the size
        self.seconds = 0.0  # nothing is compiled: a size is recorded where it is first met

    def open(self, slots: int, capacity: int) -> FixedCache:
        """A cache for this many sequences of `capacity` tokens each, provisional nodes included."""
        return FixedCache(self._pool, self.forward.planes, slots, capacity, self.forward.device)

    def read(
        self,
        rows: list[RowInputs],
        nodes: list[int],
        tokens: Tensor,
        cache: SlotCache,
        want: Want,
        *,
        logits: bool,
    ) -> ForwardOutputs:
        """One forward over the rows' tokens; found for the last `nodes` of each row."""
        sizes = [row.end - row.start for row in rows]
        if want.hidden or want.attention or not logits or max(sizes) > SIZES[-1]:
            return self.forward.read(rows, nodes, tokens, cache, want, logits=logits)
        assert isinstance(cache, FixedCache)
        size = next(size for size in SIZES if size >= max(sizes))
        fixed, run = self._made.get((cache.storages[0].data_ptr(), size)) or self._make(cache, size)
        fixed.fill(cache, rows, tokens.to(self.forward.device))
        scores = run()
        parts = zip(rows, sizes, nodes, strict=True)
        return ForwardOutputs(torch.cat([scores[row.slot, num - wanted : num] for row, num, wanted in parts]))

    def _make(self, cache: FixedCache, size: int) -> tuple[Fixed, Run]:
        fixed = Fixed.of(cache, size)

        def forward() -> Tensor:  # (S, n, V)
            fixed.met = 0
            return self.forward.model(
                input_ids=fixed.ids,
                position_ids=fixed.positions,
                past_key_values=fixed,
                use_cache=True,
                return_dict=True,
            ).logits

        for _ in range(WARM):
            forward()
        self._made[cache.storages[0].data_ptr(), size] = made = fixed, self._record(forward)
        return made


def recorded(forward: Run) -> Run:
    """The same forward as a graph of the GPU: its inputs and its output stay where they are."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        output = forward()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay
