"""Draws the siblings of a draft tree from several experts of a head, each from a distribution of its own.

Letters: M nodes, E experts, V vocabulary of the target.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.device_copies import indices
from outpace.core.grower import Grower
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.drafters.model.feature_drafter import FeatureReader
from outpace.drafters.model.grow import Read, grow
from outpace.models.draft_vocabulary import over_vocabulary
from outpace.sampling.adjust import adjust
from outpace.sampling.warp import warp


class ExpertsReader(FeatureReader):
    """The forwards of one draft of a head with `DraftHead.apart`, which also gives the logits of each expert
    alone."""

    _first = 0  # node that the last forward computed first

    def over_draft_vocabulary(self, tree: TokenTree) -> tuple[int, Tensor, Tensor | None]:
        """Implementation of drafters.model.grow.ReadDraftVocabulary."""
        self._first, logits, ids = super().over_draft_vocabulary(tree)
        return self._first, logits, ids

    def chain(self, *arguments: object) -> Tensor | None:
        """None: a chain is read level by level, as any other tree."""
        return None

    def apart(self, nodes: Sequence[int]) -> Tensor:  # (M,) -> (E, M, V)
        """The logits that the head would give with one of its experts alone, after these nodes of the last
        forward. At each node the expert with the largest router weight comes first."""
        head = self._drafter.opened.head
        assert head.apart_layer is not None
        with self.timed(), torch.no_grad():
            states = self.layer_outputs[head.apart_layer]
            states = states[indices([node - self._first for node in nodes], states.device)]
            logits = head.lm_head(head.apart(states.to(next(iter(head.own.values())))))
        self.logits = [*self.logits, logits]
        return over_vocabulary(logits, head.draft_ids, self._drafter.vocab)


def grow_apart(ctx: Context, plan: Plan, read: Read) -> TokenTree:
    """`grow` with an `ExpertsReader`, whose experts take turns in drawing the children of a node: without
    replacement, each from its own distribution, which the tokens carry as their claim. Rows at temperature 0
    get the most probable tokens of the head's usual output."""
    assert isinstance(read, ExpertsReader)
    reader = read

    def children(
        grower: Grower, at: Sequence[int], widths: Sequence[int], q: Tensor, noise: Noise
    ) -> list[int]:
        turns: list[tuple[int, int, int]] = []  # (turn, expert, child)
        experts = reader.apart(at)
        # one call per width: the keys of a node's draws must not depend on the widths of other rows' nodes
        for width in sorted(set(widths)):
            picked = [index for index, each in enumerate(widths) if each == width]
            nodes = [at[index] for index in picked]
            sampling = [ctx.sampling[grower.rows[node]] for node in nodes]
            for expert, logits in enumerate(experts):
                share = len(range(expert, width, len(experts)))  # of the turns, which go round
                if not share:
                    continue
                logits = adjust(logits[indices(picked, logits.device)], ctx, grower, nodes)
                drawn = dict.fromkeys(nodes, 0)
                for child in grower.add_drawn(nodes, warp(logits, sampling), share, noise):
                    parent = grower.parents[child]
                    turns.append((drawn[parent], expert, child))
                    drawn[parent] += 1
        return [child for *_, child in sorted(turns)]

    return grow(ctx, plan, reader, children=children)
