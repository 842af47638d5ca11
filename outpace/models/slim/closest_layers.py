"""Chooses the layers of a target to skip so that its last output at one token changes least (CLaSp).

Letters: L layers, M skipped layers, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from outpace.core.contracts import Cache
from outpace.models.eager.forward import Forward
from outpace.models.eager.skipped_modules import check_attention
from outpace.models.forward.kv_cache import EagerCache
from outpace.models.forward.request import ForwardRequest
from outpace.models.hf.target import HFTarget
from outpace.models.skip_set import SkipSet
from outpace.models.slim.reread_inputs import RereadInputs
from outpace.models.slim.slim_table import SlimTable
from outpace.models.table import TableCache, TableTarget


class ClosestLayers(Forward):
    """The dynamic programme of CLaSp (Chen et al. 2025).

    g(i, j) is the state of the token after the first i layers, j of which are skipped: either layer i of
    g(i - 1, j), or g(i - 1, j - 1), whichever has the larger cosine with the target's own output of layer i.
    Only one state is kept for each i and j, so the result g(L, M) need not be the best of all sets. Layer i
    computes its M + 1 states at once, as tokens at the same position that do not see one another: one
    forward in all. They attend to the entries of earlier tokens, computed by the whole target, and write
    none.
    """

    def __init__(self, target: HFTarget, num_skipped: int) -> None:
        """ValueError for a model that scores chains only."""
        check_attention(target.forward)
        if target.chains_only:
            raise ValueError(
                f"{type(target.model).__name__} scores chains only, and layers are chosen by trying several "
                "states at one position: use layerskip"
            )
        super().__init__(target.model)
        whole = target.forward
        self.planes, self.packs, self.dense = whole.planes, whole.packs, whole.dense
        self._num_layers, self._num_skipped, self._lock = target.num_layers, num_skipped, Lock()

    @torch.no_grad()
    def __call__(self, cache: Cache, slot: int, token: int, outputs: Sequence[Tensor]) -> SkipSet:
        """The layers to skip. `token`: the last of the slot's committed tokens in the cache; `outputs`: L ×
        (D,), the target's outputs of its layers at it."""
        assert isinstance(cache, EagerCache)
        size = self._num_skipped + 1
        base = cache.lengths[slot] - 1
        inputs = RereadInputs(cache, slot, base, size, siblings=True, dense=self.dense)
        skips: list[list[bool]] = []  # [i][j]: whether g(i + 1, j) skips layer i

        def choose(module: nn.Module, arguments: Any, given: dict[str, Any], output: Any) -> Any:
            before = arguments[0] if arguments else given["hidden_states"]
            after = output[0] if isinstance(output, tuple) else output
            layer = len(skips)
            states, skipped = _better(before[0], after[0], outputs[layer].to(after), layer)
            skips.append(skipped)
            return (states[None], *output[1:]) if isinstance(output, tuple) else states[None]

        layers = range(self._num_layers)
        with self._lock:
            hooks = [
                self.captures.layer(layer).register_forward_hook(choose, with_kwargs=True) for layer in layers
            ]
            try:
                self._run(
                    inputs, ForwardRequest(inputs.rows, [size], torch.full((size,), token), logits=False)
                )
            finally:
                for hook in hooks:
                    hook.remove()
        left, skipped_layers = self._num_skipped, list[int]()
        for layer in reversed(layers):
            if skips[layer][left]:
                skipped_layers.append(layer)
                left -= 1
        return SkipSet.of_layers(skipped_layers)


def _better(
    before: Tensor, after: Tensor, target: Tensor, layer: int
) -> tuple[Tensor, list[bool]]:  # (M + 1, D), (M + 1, D), (D,) -> (M + 1, D), (M + 1,)
    """The states after layer `layer`, by the number of skipped layers, from the states before it and its
    outputs; and which of them skip this layer. At most `layer` of the earlier layers are skipped."""
    size = len(before)
    shifted = before.roll(1, 0)  # row j: the state with j - 1 skipped layers
    both = torch.stack((after, shifted)).float()
    closeness = torch.nn.functional.cosine_similarity(both, target.float(), dim=-1)
    run, skip = closeness.tolist()
    skipped = [0 < j <= layer + 1 and (j > layer or skip[j] > run[j]) for j in range(size)]
    chosen = torch.tensor(skipped, device=after.device)[:, None]
    return torch.where(chosen, shifted, after), skipped


class ClosestTables:
    """The same for a table model: of all sets of its layers, the one whose logits have the largest cosine
    with the target's."""

    def __init__(self, target: TableTarget, num_skipped: int) -> None:
        sets = [SkipSet.of_layers(layers) for layers in combinations(range(target.num_layers), num_skipped)]
        self._target, self._tables = target, [SlimTable(target, skip_set) for skip_set in sets]

    def __call__(self, cache: Cache, slot: int, token: int, outputs: Sequence[Tensor]) -> SkipSet:
        assert isinstance(cache, TableCache)
        state = cache.state(slot)
        logits = torch.stack([table.logits[state] for table in self._tables]).clamp(min=-1)
        closeness = torch.nn.functional.cosine_similarity(logits, outputs[-1], dim=-1)
        return self._tables[int(closeness.argmax())].skip_set
