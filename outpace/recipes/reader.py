"""READER (Divilkovskiy et al. 2025): chains found in text hang from a model's tree wherever they are likely reached.

New here: deepened. Reuses: Fused, Sources, LM, SuffixAutomaton, SuffixArray, Rejection, Fixed. Exact at any
temperature: found tokens carry no claim, and no token that was drawn is dropped.

The model drafts `widths[d]` children at depth d: the likeliest, or with `sampled` drawn without replacement. At the
root and at every node of its likeliest path the text so far, `index` (a file of `outpace index build`) and the newest
`past` tokens of earlier requests are asked what followed, up to `chain` tokens. Of everything the `nodes` nodes stay
that are reached most likely: by the model's probabilities, or by the share of the places found, in which the j-th token
after a match of m counts m / (m + j).

Use it where long parts of the text come again, as with retrieved documents or edits. The paper drafts with a trained
head and does not say how it spends its nodes; searching beside the model, and moving a batch's cache only now and then,
are no part of this recipe.
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
from outpace.verifiers.rejection import Rejection


def deepened(
    ctx: Context, plan: Plan, tree: TokenTree, logits: Tensor, *, sources: TextSources, chain: int, nodes: int
) -> TokenTree:
    """The model's tree with found chains below its likeliest path, cut to the nodes reached most likely."""
    fusion, children = Fusion(tree), tree.forest.children
    reach = list(fusion.reach)
    for row, most in enumerate(plan.depth):
        node, path = row, list[int]()
        while True:
            for tokens, parents, shares, matched in sources.found(
                ctx, row, min(chain, most - len(path)), nodes, path
            ):
                depth, chances = list[int](), list[float]()
                for parent, share in zip(parents, shares, strict=True):
                    depth.append(1 if parent < 0 else depth[parent] + 1)
                    chances.append(reach[node] * share * matched / (matched + depth[-1]))
                fusion.hang(node, tokens, parents, chances)
            if not children[node]:
                break
            node = max(children[node], key=lambda child: reach[child])
            path.append(fusion.tokens[node])
    return fusion.tree(nodes)


@recipe(paper="arXiv:2508.09072", family="training-free")
def reader(
    target: Target,
    *,
    draft: Target,
    widths: tuple[int, ...] = (4, 2, 1, 1),
    sampled: bool = False,
    index: SuffixArrayFile | None = None,
    chain: int = 16,
    nodes: int = 60,
    max_ngram: int = 16,
    min_ngram: int = 2,
    past: int = 1 << 20,
) -> Parts:
    if chain < 1 or nodes < 1:
        raise ValueError(f"chain is {chain} and nodes {nodes}; draft at least one token")
    sources = TextSources(
        PastRequests(corpus(index, target.vocab), past), max_ngram=max_ngram, min_ngram=min_ngram
    )
    shape = Shape.branching(widths)
    fuse = partial(deepened, sources=sources, chain=chain, nodes=nodes)
    depth = shape.depth + chain
    return Parts(target, Fused(draft, shape, sources, fuse, sampled=sampled), Rejection(), Fixed(depth))
