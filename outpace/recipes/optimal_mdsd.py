"""Greedy multi-draft decoding (Hu et al. 2025): all candidates but one are the likeliest, the last is drawn.

New here: how the children of a node are made. Reuses: LM, Rejection, Fixed. Exact at any temperature: the likeliest
`widths[d]` - 1 tokens at depth d are chosen, without a claim, and one more is drawn from q without them, claimed to be
a draw from just that law. Rejection tests the drawn one first; refused, what is left of p may still give a chosen one.
For children made in this way no exact rule accepts one of them more often (`outpace verifiers` shows the bound).
"""

from collections.abc import Sequence

from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Noise, Parts, Target, recipe
from outpace.core.grower import Grower
from outpace.core.tree import Shape
from outpace.drafters.lm import LM
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2502.18779", family="exact verification")
def optimal_mdsd(target: Target, *, draft: Target, widths: tuple[int, ...] = (2, 2, 2, 2)) -> Parts:
    return Parts(target, LM(draft, children=greedy_last), Rejection(), Fixed(Shape.branching(widths)))


def greedy_last(grower: Grower, at: Sequence[int], widths: Sequence[int], q: Tensor, noise: Noise) -> None:
    """The likeliest children, all but one of the width, then one drawn from what they leave of q."""
    tops = [min(width - 1, q.shape[1]) for width in widths]
    most = max(tops)
    rest = q
    if most > 0:
        ranked = q.topk(most)  # one look at q: the draw must leave out just the tokens that were chosen
        kept = ranked.values > 0
        for rank in range(most):
            kept[[index for index, top in enumerate(tops) if top <= rank], rank] = False
        index, rank = kept.nonzero().unbind(1)
        tokens = ranked.indices[index, rank]
        rest = q.clone()
        rest[index, tokens] = 0
        belief = q[index, tokens] if grower.keeps_confidence else None
        grower.add_chosen([at[each] for each in index.tolist()], tokens, belief)
    mass = rest.sum(-1)
    left = (mass > 0).nonzero()[:, 0]  # a truncated q may be used up
    if len(left):
        nodes = [at[each] for each in left.tolist()]
        grower.add_drawn(nodes, rest[left] / mass[left, None], 1, noise)
