"""READER (Divilkovskiy et al. 2025): a drafted tree, deepened by retrieved chains.

New here: deepened. Reuses: FusedDrafter, TextSources, DraftModel, FeatureDrafter, eagle2_tree,
SuffixAutomaton, SuffixArray, Rejection, Fixed. Exact at any temperature: retrieved tokens and those of a head
carry no claim, and no token that was drawn is dropped.

The drafter is a draft head of EAGLE (`head`), whose tree has the most probable paths as in EAGLE-2, or a
draft model (`draft`), whose tree has a fixed shape. At the root and at every node of the drafter's most
probable path, continuations are retrieved from the text so far, the index and earlier requests. Of all nodes,
the head's included, the `nodes` most likely to be reached are kept. Estimated probabilities are the drafter's
for its nodes; for retrieved ones the share of the retrieved occurrences, where the j-th token after a match
of m tokens is weighted m / (m + j).

Use it where long passages recur, as with retrieved documents or edits. The head is the paper's kind of
drafter. Uncertain are the size of the tree that the paper takes from it and how nodes are allotted: here a
head drafts up to 59 tokens on 6 levels, as in EAGLE-2 for targets of 7B parameters, and retrieved tokens that
are likelier take the place of its least probable ones. The paper's search in parallel with the drafter and
its lazy moves of a batch's KV cache are not part of this recipe.
"""

from functools import partial

from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Parts, Plan, Target, recipe
from outpace.core.tree import TokenTree
from outpace.drafters.compose.fusion import DraftedTrees, FusedDrafter, Fusion
from outpace.drafters.lookup.past_requests import PastRequests, corpus
from outpace.drafters.lookup.sources import TextSources
from outpace.indexes.store import SuffixArrayFile
from outpace.models.heads.head_model import AnyEagleModel
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
    """The drafted tree with retrieved chains below its most probable path, cut to the `nodes` nodes of each
    row most likely to be reached and all drawn ones."""
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


@recipe(paper="arXiv:2508.09072", family="training-free", one_of=("draft", "head"))
def reader(
    target: Target,
    *,
    draft: Target | None = None,
    head: AnyEagleModel | None = None,
    widths: tuple[int, ...] = (4, 2, 1, 1),
    sampled: bool = False,
    index: SuffixArrayFile | None = None,
    retrieval_depth: int = 16,
    nodes: int = 60,
    max_ngram: int = 16,
    min_ngram: int = 2,
    max_cached_tokens: int = 1 << 20,
) -> Parts:
    """The tree of a draft head or draft model with retrieved chains below its most probable path, verified by
    rejection.

    Args:
        draft: draft model with the target's vocabulary; give it or `head`
        head: folder with a head of EAGLE or EAGLE-3, whose trees are EAGLE-2's; give it or `draft`
        widths: children of every node of the draft model's tree at each depth
        sampled: draw the draft model's tokens without replacement; by default they are its most probable ones
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
    trees = DraftedTrees.of(target, draft, head, widths, sampled=sampled)
    fuse = partial(deepened, sources=sources, retrieval_depth=retrieval_depth, nodes=nodes)
    return Parts(
        target, FusedDrafter(trees, sources, fuse), Rejection(), Fixed(trees.depth + retrieval_depth)
    )
