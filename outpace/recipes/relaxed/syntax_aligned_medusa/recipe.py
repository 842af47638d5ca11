"""Syntax-aligned Medusa (Xu et al. 2025): typical acceptance that ends with a complete fragment of the text.

The target and its heads were trained on programs with a token [FRAG] behind every identifier, keyword and
operator. In a step nothing is accepted behind the last [FRAG] of what typical acceptance takes, so that a
step adds whole fragments, and one token of the target itself.

New here: WholeFragments and the distribution of its steps. Reuses: Typical, PositionDrafter, grow,
static_tree, Fixed. At temperatures above 0 the output has another distribution than the target's. With
`epsilon` 1 and a huge `delta` nothing passes, and the output has the target's distribution.

`outpace train syntax-aligned-medusa` trains target and heads; it is a target of its own, which writes [FRAG]
too. Its tokenizer has [FRAG] as a special token, so texts are shown without it. The paper's models write
Verilog, and its parser is another; Python's own tokenizer, which says where lexical tokens end, is ours.
"""

from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Target, recipe
from outpace.drafters.model.grow import grow
from outpace.drafters.model.plain_drafts import PlainRanks
from outpace.drafters.model.position_drafter import position_drafter, static_tree
from outpace.models.fragment_token import fragment_token
from outpace.models.heads.medusa.kind import MedusaModel
from outpace.recipes.relaxed.syntax_aligned_medusa.whole_fragments import WholeFragments, WholeFragmentSteps
from outpace.verifiers.typical import NEVER


@recipe(
    paper="arXiv:2503.14153",
    family="relaxed acceptance",
    guarantee=Guarantee.LOSSY,
    exact_with={"epsilon": 1.0, "delta": NEVER},
    proven_with={"fragment": 0},
)
def syntax_aligned_medusa(
    target: Target,
    *,
    head: MedusaModel,
    fragment: int | None = None,
    epsilon: float = 0.09,
    delta: float = 0.3,
    num_nodes: int = 63,
    depth: int = 5,
) -> Parts:
    """A tree from heads, of which plausible tokens are accepted up to the end of a fragment.

    Args:
        head: folder with heads of Medusa that were trained for the target
        fragment: token that ends a fragment; None: that of the target's configuration
        epsilon: a token of a larger probability than this is accepted
        delta: and one of more than this times exp(-entropy) of the target's distribution
        num_nodes: draft tokens of the tree
        depth: longest path that is drafted; at most the number of heads
    """
    token = fragment_token(target) if fragment is None else fragment
    if not 0 <= token < target.vocab:
        raise ValueError(
            f"fragment is {token}, but the tokens are 0 to {target.vocab - 1}: give one of these"
        )
    verifier, shape = WholeFragments(epsilon, delta, token), static_tree(head, num_nodes, depth)
    drafter = position_drafter(head, target.vocab, partial(grow, sampled=False), sampled=False)
    lossy = verifier.guarantee is Guarantee.LOSSY
    steps = WholeFragmentSteps(epsilon, delta, PlainRanks(target, head, shape), token) if lossy else None
    return Parts(target, drafter, verifier, Fixed(shape), steps)
