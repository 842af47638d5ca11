"""The skip set of each request by the kind of its prompt (KNN-SSD).

Letters: T tokens of a prompt, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outpace.core.contracts import Prompt, Step, Target, Want
from outpace.core.skip_set import SkipSet
from outpace.indexes.skip_set_anchors import SkipSetAnchors

HEAD = Want(hidden=frozenset({-1}))  # hidden states at the input of the LM head


class SkipSetRoutes:
    """Implementation of drafters.model.skip_set_drafter.SkipSets: each request keeps the set of the domain
    whose anchor is nearest to the mean of the target's last hidden states over its prompt; a prompt far from
    all anchors has every second layer skipped.

    The states are those that reading the prompt computes: there is no further forward. Of a prompt whose
    beginning is in a prefix cache they are those of the rest.
    """

    learns_across_rows = False
    want = HEAD

    def __init__(self, anchors: SkipSetAnchors, num_layers: int) -> None:
        """ValueError for anchors of another model."""
        if anchors.num_layers != num_layers:
            raise ValueError(
                f"the anchors were made for a model of {anchors.num_layers} layers and this one has "
                f"{num_layers}: build them again with --tokenizer naming your model"
            )
        self._anchors, self._default = anchors, alternate_layers(num_layers)
        self._sums: dict[
            int, tuple[Tensor, int]
        ] = {}  # slot -> (D,) sum of the prompt's states, their number
        self._sets: dict[int, SkipSet] = {}  # by slot

    def of(self, slot: int) -> SkipSet | None:
        return self._sets.get(slot)

    def observe(self, step: Step) -> None:
        forest, states = step.draft.tree.forest, step.scores.hidden[-1]
        for row, slot in enumerate(step.ctx.slots):
            if slot in self._sets:
                continue
            # a part of the prompt, or its last token in the first step that generates
            read = forest.path(step.kept[row]) if not step.generated[row] else [row]
            own = states[[node - step.scores.first for node in read]].float().sum(0)
            total, count = self._sums.get(slot, (torch.zeros_like(own), 0))
            self._sums[slot] = own + total, count + len(read)
            if step.generated[row]:
                self._sets[slot] = self._route(*self._sums.pop(slot))

    def _route(self, total: Tensor, count: int) -> SkipSet:
        state = (total / count).cpu().numpy()
        if len(state) != (size := self._anchors.centers.shape[1]):
            raise ValueError(
                f"the anchors were made by a model with {size} channels and this one has {len(state)}: "
                "build them again with --tokenizer naming your model"
            )
        domain = self._anchors.domain(state)
        return self._default if domain is None else self._anchors.skip_set(domain)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._sums.pop(slot, None)
            self._sets.pop(slot, None)


def alternate_layers(num_layers: int) -> SkipSet:
    """Every second layer, from the second one. ValueError for a model of one layer."""
    if num_layers < 2:
        raise ValueError("a target of one layer cannot skip any: use a draft model")
    return SkipSet.of_layers(range(1, num_layers, 2))


@torch.inference_mode()
def prompt_states(target: Target, texts: Sequence[Tensor]) -> NDArray[np.float32]:  # N × (T,) -> (N, D)
    """The mean over each prompt's tokens of the target's hidden states at the LM head. ValueError without
    prompts."""
    if not texts:
        raise ValueError("a domain has no prompts: give texts for each")
    means = list[Tensor]()
    for text in texts:
        cache = target.open(1, len(text) + 1)
        # the last token of what is given is not read
        _, scores = target.prefill([Prompt(torch.cat((text, text[-1:])))], [0], cache, HEAD)
        means.append(scores.hidden[-1].float().mean(0))
    return torch.stack(means).cpu().numpy()
