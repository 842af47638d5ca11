"""CLaSp (Chen et al. 2025): the target drafts without the layers that mattered least at the newest token.

New here: ClosestLayers, a dynamic programme over the layers that finds a set to skip in one small forward,
and LayerChoice, which runs it after every `interval` verifications of a request. Reuses: the target without
these layers on its own KV cache, SkipSetDrafter, DraftModel, SelfDraft, Rejection, Confidence. Exact at any
temperature: the set follows from committed tokens, and a draft ends after a token, which stays in it.

Nothing is trained or learned from other requests: the programme reads the outputs that verification has
computed. Each request has a set of its own, so rows of a batch are drafted together only where their sets are
equal. The paper does not fix how often layers are chosen and how many are skipped; taken are every 8
verifications and half of the layers. For eager targets: a model compiled with OpenVINO would have to be
compiled for every set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from outpace.controllers.confidence import Confidence
from outpace.core.contracts import Cache, Drafter, Parts, Step, Target, Want, recipe
from outpace.drafters.compose.planned_rows import SelfDraft
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.skip_set_drafter import SkipSetDrafter
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import closest_layers, num_layers, switching
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2505.24196", family="self-speculation")
def clasp(
    target: Target,
    *,
    num_skipped: int | None = None,
    interval: int = 8,
    depth: int = 12,
    threshold: float = 0.7,
    sampled: bool = True,
) -> Parts:
    """A chain drafted without the layers that changed the last token least, verified by rejection.

    Args:
        num_skipped: layers that are skipped; none: half of the target's
        interval: choose the layers of a request after so many verifications
        depth: most tokens drafted per step
        threshold: end the draft with a token whose draft probability is below this
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    layers = num_layers(target)
    without = switching(target)
    choose = closest_layers(target, layers // 2 if num_skipped is None else num_skipped)

    def draft(skip_set: SkipSet) -> Drafter:
        return DraftModel(without(skip_set), sampled=sampled)

    drafter = SkipSetDrafter(draft, LayerChoice(choose, layers, interval), sampled=sampled)
    return Parts(target, SelfDraft(drafter), Rejection(), Confidence(depth, threshold))


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
