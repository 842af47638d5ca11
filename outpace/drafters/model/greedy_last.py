"""Children of a node of which all but one are the most probable tokens and the last is drawn from the others
(Hu et al. 2025).

Letters: F nodes that get children, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outpace.core.grower import Grower
from outpace.core.noise import Noise
from outpace.sampling.topk import top


def greedy_last(
    grower: Grower, at: Sequence[int], widths: Sequence[int], q: Tensor, noise: Noise
) -> list[int]:
    """Add `widths` children to each node: the width - 1 most probable tokens, chosen without sampling, then
    one drawn from q with those set to 0, renormalised. Returns the new nodes."""
    num_chosen = [min(width - 1, q.shape[1]) for width in widths]
    max_chosen = max(num_chosen)
    rest = q
    added: list[int] = []
    if max_chosen > 0:
        # one top-k for choosing and masking: two could break ties differently
        values, ids = top(q, max_chosen)
        kept = values > 0
        for rank in range(max_chosen):
            kept[[index for index, number in enumerate(num_chosen) if number <= rank], rank] = False
        index, rank = kept.nonzero().unbind(1)
        tokens = ids[index, rank]
        rest = q.clone()
        rest[index, tokens] = 0
        draft_probs = q[index, tokens] if grower.keeps_confidence else None
        added += grower.add_chosen([at[each] for each in index.tolist()], tokens, draft_probs)
    mass = rest.sum(-1)
    left = (mass > 0).nonzero()[:, 0]  # nodes with probability left: truncation may leave q no other tokens
    if len(left):
        nodes = [at[each] for each in left.tolist()]
        added += grower.add_drawn(nodes, rest[left] / mass[left, None], 1, noise)
    return added
