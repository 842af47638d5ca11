"""RASD (Quan et al. 2025): a model's tree and what retrieval finds, pruned by the model, in one tree.

New here: pruned. Reuses: Fused, Sources, LM, SuffixAutomaton, SuffixArray, Rejection, Fixed. Exact at any temperature:
found tokens carry no claim, and pruning looks at the model's distribution, never at a token that was drawn.

The model drafts `widths[d]` children at depth d: the likeliest, or with `sampled` drawn without replacement. What
followed the last tokens earlier in the text, in `index` (a file of `outpace index build`) and in the newest `past`
tokens of earlier requests makes a second tree. Of it stay branches that begin with one of the model's `top_k` next
tokens, of these the `nodes` best by that token's probability times their share of the places found; both trees are
merged by longest common prefix.

Use it where answers copy from long inputs or resemble earlier ones and a draft model is at hand. The paper drafts with
a trained head and does not say how it scores branches; retrieval runs before the model here, not beside it.
"""

from functools import partial

from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Parts, Plan, Target, recipe
from outpace.core.tree import Shape, TokenTree
from outpace.drafters.compose.fusion import Fused, Fusion
from outpace.drafters.lookup.past_requests import PastRequests, corpus
from outpace.drafters.lookup.sources import TextSources
from outpace.indexes.store import SuffixArrayFile
from outpace.sampling.topk import top
from outpace.verifiers.rejection import Rejection

FOUND = 64  # nodes of a branch before it is pruned


def pruned(
    ctx: Context, plan: Plan, tree: TokenTree, logits: Tensor, *, sources: TextSources, top_k: int, nodes: int
) -> TokenTree:
    """The model's tree, and of what was found the branches whose first token the model thinks likely."""
    beliefs, ids = top(logits.float().softmax(-1), min(top_k, logits.shape[-1]))
    fusion = Fusion(tree)
    for row, depth in enumerate(plan.depth):
        likely = dict(zip(ids[row].tolist(), beliefs[row].tolist(), strict=True))
        found = Fusion(TokenTree.roots(tree.tokens[row : row + 1]))
        for tokens, parents, shares, _ in sources.found(ctx, row, depth, FOUND):
            first = [0.0] * len(tokens)  # the model's belief in the token that each node's branch begins with
            for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
                first[node] = likely.get(token, 0.0) if parent < 0 else first[parent]
            kept = [node for node, belief in enumerate(first) if belief > 0]
            place = {node: index for index, node in enumerate(kept)}
            found.hang(
                0,
                [tokens[node] for node in kept],
                [place.get(parents[node], -1) for node in kept],
                [first[node] * shares[node] for node in kept],
            )
        if len(found.tokens) > 1:
            chosen = found.tree(nodes)
            parents = [parent - 1 for parent in chosen.forest.parents[1:]]
            fusion.hang(row, chosen.tokens.tolist()[1:], parents, [0.0] * len(parents))
    return fusion.tree()


@recipe(paper="arXiv:2503.03434", family="training-free")
def rasd(
    target: Target,
    *,
    draft: Target,
    widths: tuple[int, ...] = (4, 2, 1, 1),
    sampled: bool = False,
    index: SuffixArrayFile | None = None,
    depth: int = 10,
    top_k: int = 10,
    nodes: int = 24,
    max_ngram: int = 16,
    min_ngram: int = 2,
    past: int = 1 << 20,
) -> Parts:
    if top_k < 1 or nodes < 1:
        raise ValueError(f"top_k is {top_k} and nodes {nodes}; keep at least one")
    sources = TextSources(
        PastRequests(corpus(index, target.vocab), past), max_ngram=max_ngram, min_ngram=min_ngram
    )
    shape = Shape.branching(widths)
    fuse = partial(pruned, sources=sources, top_k=top_k, nodes=nodes)
    return Parts(
        target,
        Fused(draft, shape, sources, fuse, sampled=sampled),
        Rejection(),
        Fixed(max(depth, shape.depth)),
    )
