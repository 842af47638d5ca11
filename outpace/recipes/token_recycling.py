"""Token recycling (Luo et al. 2025): draft what the target thought likely the last time it read the same token.

New here: nothing. Reuses: Recycling, rank templates, Match, Fixed. Exact at any temperature: its tokens carry no claim.
A table holds the `width` likeliest tokens after every token of the vocabulary, from the logits of each node that the
target has read, rejected ones included; it takes 4 * `width` bytes a token and stays from request to request. A fixed
tree is filled from it, rank by rank: `nodes` nodes that lean to low ranks, or exactly as many at each depth as `levels`
says, or the tree that `parents` names, the parent of each node, 0 being the root: `outpace bench` tells which one the
measured acceptance of every rank and cost of forwards make the fastest. The paper's tree has 80 nodes
(`--levels 8,21,25,15,8,3`); the default is smaller, for machines on which a forward over many tokens costs more than
one over few. Tokens that were never read have no children. With `prompt` the table learns from prompts too: better
first drafts, for logits of the whole prompt, which take memory where the vocabulary is large.

Use it where nothing is known of the text beforehand and no draft model is at hand: unlike lookups it drafts at every
step and needs no repetition.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.lookup.rank_template import rank_template
from outpace.drafters.lookup.token_recycling import TokenRecycling
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2408.08696", family="training-free")
def token_recycling(
    target: Target,
    *,
    nodes: int = 15,
    levels: tuple[int, ...] = (),
    parents: tuple[int, ...] | None = None,
    width: int = 8,
    prompt: bool = False,
) -> Parts:
    shape = rank_template(nodes, levels, width=width) if parents is None else Shape(parents)
    return Parts(target, TokenRecycling(target.vocab, width, prompt=prompt), Match(), Fixed(shape))
