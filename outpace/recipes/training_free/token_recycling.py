"""Token recycling (Luo et al. 2025): draft the target's top-k tokens after the last occurrence of each token.

New here: nothing. Reuses: TokenRecycling, rank_template, Match, Fixed. Exact at any temperature: the draft
tokens carry no claim. An adjacency table holds the `top_k` most probable tokens after every token of the
vocabulary, from the logits of each node that the target has scored, rejected ones included. It takes 4 *
`top_k` bytes per token of the vocabulary and persists across requests. A tree of fixed shape is filled from
it, rank by rank: by default one of 80 nodes, as many at each depth as in the paper. Tokens that were never
scored have no children. The preset `cpu` has 15 nodes, for hardware on which a forward over many tokens costs
more than one over few; `outpace bench` reports which tree is the fastest by the measured acceptance of every
rank and the cost of forwards.

Use it where the text does not repeat anything and there is no draft model: unlike lookups it drafts at every
step and needs no repetition.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.lookup.rank_template import TOKEN_RECYCLING_LEVELS, rank_template
from outpace.drafters.lookup.token_recycling import TokenRecycling
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2408.08696", family="training-free", presets={"cpu": {"nodes_per_depth": (5, 5, 4, 1)}})
def token_recycling(
    target: Target,
    *,
    nodes: int | None = None,
    nodes_per_depth: tuple[int, ...] = TOKEN_RECYCLING_LEVELS,
    parents: tuple[int, ...] | None = None,
    top_k: int = 8,
    learn_from_prompts: bool = False,
) -> Parts:
    """A tree of fixed shape, filled from a table of the target's top-k tokens after each token.

    Args:
        nodes: draft tokens per step, in place of `nodes_per_depth`
        nodes_per_depth: draft tokens at each depth
        parents: parent of each draft node, 0 is the root; a tree of any shape in place of both
        top_k: most probable next tokens stored for each token
        learn_from_prompts: also learn from prompts, which needs the logits of every prompt token
    """
    levels = nodes_per_depth if nodes is None else ()
    shape = rank_template(nodes or 0, levels, width=top_k) if parents is None else Shape(parents)
    drafter = TokenRecycling(target.vocab, top_k, learn_from_prompts=learn_from_prompts)
    return Parts(target, drafter, Match(), Fixed(shape))
