"""Children of which all but one are the likeliest and the last is drawn from the rest (Hu et al. 2025).

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
    """The likeliest children, all but one of the width, then one drawn from what they leave of q."""
    tops = [min(width - 1, q.shape[1]) for width in widths]
    most = max(tops)
    rest = q
    added: list[int] = []
    if most > 0:
        values, ids = top(q, most)  # one look at q: the draw must leave out just the tokens that were chosen
        kept = values > 0
        for rank in range(most):
            kept[[index for index, number in enumerate(tops) if number <= rank], rank] = False
        index, rank = kept.nonzero().unbind(1)
        tokens = ids[index, rank]
        rest = q.clone()
        rest[index, tokens] = 0
        belief = q[index, tokens] if grower.keeps_confidence else None
        added += grower.add_chosen([at[each] for each in index.tolist()], tokens, belief)
    mass = rest.sum(-1)
    left = (mass > 0).nonzero()[:, 0]  # a truncated q may be used up
    if len(left):
        nodes = [at[each] for each in left.tolist()]
        added += grower.add_drawn(nodes, rest[left] / mass[left, None], 1, noise)
    return added
