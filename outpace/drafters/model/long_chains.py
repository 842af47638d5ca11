"""Chains of a draft tree in progress that get longer side by side, one forward for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from outpace.core.context import Context
from outpace.core.device_copies import indices
from outpace.core.grower import Grower
from outpace.drafters.model.grow import Read, add_children, going_on, without_replacement
from outpace.sampling.adjust import adjust


def lengthen(
    grower: Grower,
    ctx: Context,
    read: Read,
    first: int,
    missing: Mapping[int, int],  # leaf -> number of tokens that its chain lacks
    *,
    sampled: bool,
) -> None:
    """Lengthen the chains that end at these leaves, which are among the nodes from `first` on, those that
    `read` has not read. Tokens are drawn in rows that sample unless `sampled` is false, else the most
    probable ones. A chain ends with a stop token."""
    while frontier := [leaf for leaf in going_on(ctx, grower, first) if missing.get(leaf, 0) > 0]:
        logits = logits_after(grower, ctx, read, frontier)
        first, one = len(grower), [1] * len(frontier)
        added = add_children(grower, frontier, one, logits, ctx, sampled, without_replacement)
        missing = {node: missing[grower.parents[node]] - 1 for node in added}


def logits_after(  # (M,) -> (M, V)
    grower: Grower, ctx: Context, read: Read, nodes: Sequence[int]
) -> Tensor:
    """The logits after these nodes, among those that this forward reads, with the sampling parameters that
    are applied before temperature."""
    first, logits = read(grower.structure())
    if len(nodes) != len(logits):
        logits = logits[indices([node - first for node in nodes], logits.device)]
    return adjust(logits, ctx, grower, nodes)
