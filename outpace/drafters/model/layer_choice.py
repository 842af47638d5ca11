"""Skip the layers without which the target's last output changed least at the newest committed token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from outpace.core.contracts import Cache, Step, Want
from outpace.core.skip_set import SkipSet


class LayerChoice:
    """Implementation of drafters.model.skip_set_drafter.SkipSets with the rule of CLaSp (Chen et al. 2025):
    after every `interval` verifications of a request its layers are chosen anew, at the last accepted token,
    of which the verification has computed the outputs of all layers. Each request has a set of its own."""

    learns_across_rows = False

    def __init__(
        self, choose: Callable[[Cache, int, int, Sequence[Tensor]], SkipSet], num_layers: int, interval: int
    ) -> None:
        """`choose`: (the target's cache, slot, the last token of the slot in the cache, the outputs (D,) of
        each layer at it) -> the layers to skip. ValueError for an interval below 1."""
        if interval < 1:
            raise ValueError(f"interval is {interval}: choose layers after every step (1) or more rarely")
        self._choose, self._layers, self._interval = choose, range(num_layers), interval
        self.want = Want(hidden=frozenset(self._layers))
        self._sets: dict[int, SkipSet] = {}  # by slot
        self._age: dict[int, int] = {}  # slot -> verifications since its set was chosen

    def of(self, slot: int) -> SkipSet | None:
        return self._sets.get(slot)

    def observe(self, step: Step) -> None:
        tokens, hidden = step.draft.tree.tokens, step.scores.hidden
        for row, slot in enumerate(step.ctx.slots):
            if not step.generated[row] or row in step.finished:
                continue
            self._age[slot] = self._age.get(slot, 0) + 1
            if slot in self._sets and self._age[slot] < self._interval:
                continue
            node = step.kept[row]  # the last that was accepted: its entry is the last in the cache
            outputs = [hidden[layer][node - step.scores.first] for layer in self._layers]
            self._sets[slot] = self._choose(step.ctx.cache, slot, int(tokens[node]), outputs)
            self._age[slot] = 0

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._sets.pop(slot, None)
            self._age.pop(slot, None)
