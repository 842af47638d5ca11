"""KNN-SSD (Song et al. 2025): the target drafts without the sub-layers that suit the kind of the prompt.

New here: SkipSetAnchors, a file with a skip set for each domain, and SkipSetRoutes, which gives a request the
set of the domain whose prompts its own is nearest to. Reuses: the target without these sub-layers on its own
KV cache, SkipSetDrafter, DraftModel, SelfDraft, Rejection, Confidence. Exact at any temperature: the set
follows from the prompt, and a draft ends after a token, which stays in it. With `sampled` false the tokens
are chosen, not drawn, and carry no claim.

`outpace index build --kind skip-sets --from maths.jsonl --from stories.jsonl --tokenizer MODEL` makes the
file: each `--from` is a domain, with lines that have a "prompt" or "messages", or texts in the chat template
that requests will have. The paper searches sets by measured tokens per second; here the tokens are counted,
and the forwards with the share of the weights that each reads, which is repeatable. No speed of this method
has been measured here, only tokens per weights read (docs/log.md): where a step's time does not follow the
weights that it reads, as on a GPU with a small model, the sets that are found need not be the fastest. A
prompt that is far from all anchors has every second layer skipped. A compiled target is compiled once for
each set that is used.

Letters: T tokens of a prompt, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outpace.controllers.confidence import Confidence
from outpace.core.contracts import Drafter, Parts, Prompt, Step, Target, Want, recipe
from outpace.drafters.compose.planned_rows import SelfDraft
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.skip_set_drafter import SkipSetDrafter
from outpace.indexes import store
from outpace.indexes.store import SkipSetFile
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import num_layers, without
from outpace.recipes.self_speculation.knn_ssd.skip_set_anchors import SkipSetAnchors
from outpace.verifiers.rejection import Rejection

HEAD = Want(hidden=frozenset({-1}))  # hidden states at the input of the LM head


@recipe(paper="arXiv:2505.16162", family="self-speculation")
def knn_ssd(
    target: Target,
    *,
    anchors: SkipSetFile,
    depth: int = 12,
    threshold: float = 0.8,
    sampled: bool = True,
) -> Parts:
    """A chain drafted without the sub-layers of the prompt's domain, verified by rejection.

    Args:
        anchors: file of `outpace index build --kind skip-sets --tokenizer MODEL`
        depth: most tokens drafted per step
        threshold: end the draft with a token whose draft probability is below this
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    layers = num_layers(target)
    routes = SkipSetRoutes(store.load(SkipSetAnchors, anchors), layers)

    def draft(skip_set: SkipSet) -> Drafter:
        return DraftModel(without(target, skip_set), sampled=sampled)

    drafter = SkipSetDrafter(draft, routes, sampled=sampled)
    return Parts(target, SelfDraft(drafter), Rejection(), Confidence(depth, threshold))


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
