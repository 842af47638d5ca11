"""Typical acceptance (Cai et al. 2024): draft tokens that are plausible for the target are accepted.

More of a draft stays than the target's own draws would take; at temperatures above 0 the output has another
distribution (section 2.3.1 of the paper).

New here: Typical and the distribution of its steps. Reuses: PositionDrafter, DraftModel, grow, static_tree,
Fixed. With `epsilon` 1 and a huge `delta` nothing passes, and the output has the target's distribution; at
temperature 0 it is the target's greedy text. The published code has the two thresholds in both orders; these
are the paper's. The entropy is that of the distribution from which the request samples, with its temperature,
and the longest path of accepted tokens is taken, of several the most probable one. Heads draft nothing in the
step that reads the end of a prompt, nor in that which reads the text of a preempted request again.

With a draft model in place of heads, its most probable tokens are drafted. On an accelerator a draft may go
on behind a token that ends the text, and the longest path counts what is there; on a CPU it ends there."""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import grow
from outpace.drafters.model.plain_drafts import PlainChains, PlainRanks
from outpace.drafters.model.position_drafter import position_drafter, static_tree
from outpace.models.heads.medusa.kind import MedusaModel
from outpace.verifiers.typical import NEVER, Typical, TypicalSteps


@recipe(
    paper="arXiv:2401.10774",
    family="relaxed acceptance",
    guarantee=Guarantee.LOSSY,
    one_of=("head", "draft"),
    exact_with={"epsilon": 1.0, "delta": NEVER},
)
def medusa_typical(
    target: Target,
    *,
    head: MedusaModel | None = None,
    draft: Target | None = None,
    epsilon: float = 0.09,
    delta: float = 0.3,
    num_nodes: int = 63,
    depth: int = 5,
) -> Parts:
    """A tree from heads that each predict one of the next tokens; plausible tokens are accepted.

    Args:
        head: folder with heads of Medusa that were trained for the target
        draft: a draft model whose most probable tokens are drafted, in place of heads
        epsilon: a token of a larger probability than this is accepted
        delta: and one of more than this times exp(-entropy) of the target's distribution
        num_nodes: draft tokens of the tree from heads
        depth: longest path that is drafted; at most the number of heads
    """
    verifier = Typical(epsilon, delta)
    if head is not None:
        shape = static_tree(head, num_nodes, depth)
        drafter = position_drafter(head, target.vocab, partial(grow, sampled=False), sampled=False)
        plain, controller = PlainRanks(target, head, shape), Fixed(shape)
    else:
        assert draft is not None
        drafter = DraftModel(draft, sampled=False)
        plain, controller = PlainChains(draft, depth), Fixed(depth)
    lossy = verifier.guarantee is Guarantee.LOSSY
    steps = TypicalSteps(epsilon, delta, plain) if lossy else None
    return Parts(target, drafter, verifier, controller, steps)
