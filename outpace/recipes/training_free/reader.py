"""READER (Divilkovskiy et al. 2025): a draft model's tree, deepened by retrieved chains.

New here: deepened. Reuses: FusedDrafter, TextSources, DraftModel, SuffixAutomaton, SuffixArray, Rejection,
Fixed. Exact at any temperature: retrieved tokens carry no claim, and no token that was drawn is dropped.

At the root and at every node of the draft model's most probable path, continuations are retrieved from the
text so far, the index and earlier requests. Of all nodes the `nodes` most likely to be reached are kept.
Estimated probabilities are the draft model's for its nodes; for retrieved ones the share of the retrieved
occurrences, where the j-th token after a match of m tokens is weighted m / (m + j).

Use it where long passages recur, as with retrieved documents or edits. The paper drafts with a trained head
and does not define how nodes are allotted; its search in parallel with the model and its lazy moves of a
batch's KV cache are not part of this recipe.
"""

from functools import partial

from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Parts, Plan, Target, recipe
from outpace.core.tree import Shape, TokenTree
from outpace.drafters.compose.fusion import FusedDrafter, Fusion
from outpace.drafters.lookup.past_requests import PastRequests, corpus
from outpace.drafters.lookup.sources import TextSources
from outpace.indexes.store import SuffixArrayFile
from outpace.verifiers.rejection import Rejection


def deepened(
    ctx: Context,
    plan: Plan,
    tree: TokenTree,
    logits: Tensor,
    *,
    sources: TextSources,
    retrieval_depth: int,
    nodes: int,
) -> TokenTree:
    """The draft model's tree with retrieved chains below its most probable path, cut to the `nodes` nodes of
    each row most likely to be reached and all drawn ones."""
    fusion, children = Fusion(tree), tree.forest.children
    reach = list(fusion.path_probs)
    for row, max_depth in enumerate(plan.depth):
        node, path = row, list[int]()
        while True:
            for tokens, parents, shares, matched in sources.continuations(
                ctx, row, min(retrieval_depth, max_depth - len(path)), nodes, path
            ):
                depth, probs = list[int](), list[float]()
                for parent, share in zip(parents, shares, strict=True):
                    depth.append(1 if parent < 0 else depth[parent] + 1)
                    probs.append(reach[node] * share * matched / (matched + depth[-1]))
                fusion.merge(node, tokens, parents, probs)
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
    retrieval_depth: int = 16,
    nodes: int = 60,
    max_ngram: int = 16,
    min_ngram: int = 2,
    max_cached_tokens: int = 1 << 20,
) -> Parts:
    """A draft model's tree with retrieved chains below its most probable path, verified by rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        widths: children of every node of the model's tree at each depth
        sampled: draw the model's tokens without replacement; by default they are its most probable ones
        index: file of `outpace index build`; without one only the request and earlier ones are searched
        retrieval_depth: maximum number of tokens of a retrieved chain
        nodes: maximum number of draft tokens per row, drawn ones always included
        max_ngram: maximum length of the last n-gram looked up
        min_ngram: minimum length of a match
        max_cached_tokens: number of newest tokens of earlier requests kept for retrieval; 0: none
    """
    if retrieval_depth < 1 or nodes < 1:
        raise ValueError(f"retrieval_depth is {retrieval_depth} and nodes {nodes}; draft at least one token")
    past = PastRequests(corpus(index, target.vocab), max_cached_tokens)
    sources = TextSources(past, max_ngram=max_ngram, min_ngram=min_ngram)
    shape = Shape.branching(widths)
    fuse = partial(deepened, sources=sources, retrieval_depth=retrieval_depth, nodes=nodes)
    drafter = FusedDrafter(draft, shape, sources, fuse, sampled=sampled)
    return Parts(target, drafter, Rejection(), Fixed(shape.depth + retrieval_depth))
