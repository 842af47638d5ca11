"""Forwards of fixed sizes as CUDA graphs, recorded once and replayed: one launch instead of hundreds of
kernel launches.

A forward covers all slots of a KV cache; rows with fewer tokens than its size, and slots without tokens, are
padded.

Letters: S slots, n tokens of each slot, N requested tokens of all slots, V vocabulary size, D hidden size.
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

# a forward over static inputs -> logits (S, n, V) and layers' outputs (S, n, D), as a recording keeps them
Run = Callable[[], ForwardOutputs]
# of a recording: KV cache address, size, layers whose outputs it has, whether it has logits, and features
Variant = tuple[int, int, frozenset[int], bool, bool]


class GraphReplay(InTorch):
    """A model's forwards as CUDA graphs on static memory, one for each size and set of outputs that is asked
    for. Inputs longer than the largest size, and forwards whose attention weights are needed, run eagerly in
    `forward`. ValueError if the model has attention code of its own or takes no position ids."""

    cache_in_8_bits = begins_later = False  # recorded forwards compute all layers

    def __init__(self, forward: Forward, record: Callable[[Run], Run]) -> None:
        if forward.dense or "position_ids" not in forward.parameters:
            raise ValueError("it has attention code or position ids of its own")
        self.forward, self.planes, self.packs = forward, forward.planes, forward.packs
        self._record = record
        self._pool = MemoryPool(self._forget)
        self._inputs: dict[tuple[int, int], StaticInputs] = {}  # by KV cache address and size
        self._made: dict[Variant, Run] = {}

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
        want, features, sizes = request.want, request.features, request.sizes
        rows, logits = request.rows, request.logits
        no_vectors = bool(want.hidden - {-1}) and not self.forward.one_state
        is_recorded = request.is_plain and request.after is None and not want.attention and not no_vectors
        if not is_recorded or max(sizes) > SIZES[-1]:
            return self.forward.read(request, cache)
        assert isinstance(cache, StaticCache)
        address, size = cache.storages[0].data_ptr(), next(each for each in SIZES if each >= max(sizes))
        if (fixed := self._inputs.get((address, size))) is None:
            fixed = self._inputs[address, size] = StaticInputs.of(cache, size)
        if features is not None:
            fixed.open_features(features.shape[1], self.forward.model.dtype)
        variant = address, size, want.hidden, logits, features is not None
        run = self._made.get(variant) or self._make(variant, fixed, cache)
        fixed.fill(cache, rows, request.tokens.to(self.forward.device), features)
        outputs, places = run(), list(zip(rows, sizes, request.nodes, strict=True))

        def of_nodes(outputs: Tensor) -> Tensor:  # (S, n, ...) -> (N, ...), copied from the static memory
            return torch.cat([outputs[row.slot, num - wanted : num] for row, num, wanted in places])

        return ForwardOutputs(
            None if outputs.logits is None else of_nodes(outputs.logits),
            {layer: of_nodes(states) for layer, states in outputs.hidden.items()},
        )

    def _forget(self, address: int) -> None:
        self._inputs = {key: inputs for key, inputs in self._inputs.items() if key[0] != address}
        self._made = {variant: run for variant, run in self._made.items() if variant[0] != address}

    def _make(self, variant: Variant, fixed: StaticInputs, cache: StaticCache) -> Run:
        _, _, layers, logits, takes_features = variant
        # the forwards before recording write keys and values: not where an earlier forward wrote its own
        fixed.cache_positions.fill_(cache.capacity)
        features = {"features": fixed.features} if takes_features else {}

        def forward() -> ForwardOutputs:
            fixed.masks_used = 0
            with self.forward.captures.capture(layers, logits) as hidden:
                output = self.forward.model(
                    input_ids=fixed.ids,
                    position_ids=fixed.positions,
                    use_cache=True,
                    return_dict=True,
                    **{self.forward.cache_argument: fixed},
                    **features,
                )
            return ForwardOutputs(output.logits if logits else None, hidden)

        for _ in range(WARMUP_RUNS):
            forward()
        self._made[variant] = made = self._record(forward)
        return made


def record_graph(forward: Run) -> Run:
    """Record the forward as a CUDA graph; returns a function that replays it. Inputs and outputs keep their
    addresses, so a replay overwrites the previous outputs."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU
        outputs = forward()

    def replay() -> ForwardOutputs:
        graph.replay()
        return outputs

    return replay
