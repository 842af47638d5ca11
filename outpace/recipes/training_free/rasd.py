"""RASD (Quan et al. 2025): a drafted tree merged with a retrieved tree that the drafter prunes.

New here: pruned. Reuses: FusedDrafter, TextSources, DraftModel, FeatureDrafter, eagle2_tree, SuffixAutomaton,
SuffixArray, Rejection, Fixed. Exact at any temperature: retrieved tokens and those of a head carry no claim,
and pruning depends on the drafter's distribution, never on a token that was drawn.

The drafter is a draft head of EAGLE (`head`), whose tree has the most probable paths as in EAGLE-2, or a
draft model (`draft`), whose tree has a fixed shape. The retrieved tree consists of continuations of the last
tokens, found earlier in the text, in the index and in earlier requests. Its branches are kept if they begin
with one of the drafter's `num_first_tokens` most probable next tokens; of their nodes the `nodes` with the
largest product of that probability and their share of the retrieved occurrences are kept. Both trees are
merged by longest common prefix.

Use it where answers copy from long inputs or resemble earlier ones and there is a head or a draft model. The
head is the paper's kind of drafter. Uncertain are the sizes of the paper's trees and how it scores branches:
here a head's tree has up to 59 tokens on 6 levels, as EAGLE-2's for targets of 7B parameters. Retrieval runs
after the drafter, not in parallel with it.
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
from outpace.sampling.topk import top
from outpace.verifiers.rejection import Rejection

RETRIEVED = 64  # maximum number of nodes of a retrieved tree before it is pruned


def pruned(
    ctx: Context,
    plan: Plan,
    tree: TokenTree,
    logits: Tensor,
    *,
    sources: TextSources,
    num_first_tokens: int,
    nodes: int,
) -> TokenTree:
    """The drafted tree, with retrieved branches added: those that begin with one of the drafter's
    `num_first_tokens` most probable next tokens, at most `nodes` nodes of them per row."""
    probs, ids = top(logits.float().softmax(-1), min(num_first_tokens, logits.shape[-1]))
    fusion = Fusion(tree)
    for row, depth in enumerate(plan.depth):
        prob_of = dict(zip(ids[row].tolist(), probs[row].tolist(), strict=True))
        retrieved = Fusion(TokenTree.roots(tree.tokens[row : row + 1]))
        for tokens, parents, shares, _ in sources.continuations(ctx, row, depth, RETRIEVED):
            first = [0.0] * len(tokens)  # the drafter's probability of the first token of each node's branch
            for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
                first[node] = prob_of.get(token, 0.0) if parent < 0 else first[parent]
            kept = [node for node, prob in enumerate(first) if prob > 0]
            new_index = {node: index for index, node in enumerate(kept)}
            retrieved.merge(
                0,
                [tokens[node] for node in kept],
                [new_index.get(parents[node], -1) for node in kept],
                [first[node] * shares[node] for node in kept],
            )
        if len(retrieved.tokens) > 1:
            chosen = retrieved.tree(nodes)
            parents = [parent - 1 for parent in chosen.forest.parents[1:]]
            fusion.merge(row, chosen.tokens.tolist()[1:], parents, [0.0] * len(parents))
    return fusion.tree()


@recipe(paper="arXiv:2503.03434", family="training-free", one_of=("draft", "head"))
def rasd(
    target: Target,
    *,
    draft: Target | None = None,
    head: AnyEagleModel | None = None,
    widths: tuple[int, ...] = (4, 2, 1, 1),
    sampled: bool = False,
    index: SuffixArrayFile | None = None,
    depth: int = 10,
    num_first_tokens: int = 10,
    nodes: int = 24,
    max_ngram: int = 16,
    min_ngram: int = 2,
    max_cached_tokens: int = 1 << 20,
) -> Parts:
    """The tree of a draft head or draft model merged with a pruned retrieved tree, verified by rejection.

    Args:
        draft: draft model with the target's vocabulary; give it or `head`
        head: folder with a head of EAGLE or EAGLE-3, whose trees are EAGLE-2's; give it or `draft`
        widths: children of every node of the draft model's tree at each depth
        sampled: draw the draft model's tokens without replacement; by default they are its most probable ones
        index: file of `outpace index build`; without one only the request and earlier ones are searched
        depth: maximum number of tokens of a retrieved continuation
        num_first_tokens: most probable next tokens of the drafter with which a retrieved branch may begin
        nodes: maximum number of retrieved nodes per row
        max_ngram: maximum length of the last n-gram looked up
        min_ngram: minimum length of a match
        max_cached_tokens: number of newest tokens of earlier requests kept for retrieval; 0: none
    """
    if num_first_tokens < 1 or nodes < 1:
        raise ValueError(f"num_first_tokens is {num_first_tokens} and nodes {nodes}; keep at least one")
    past = PastRequests(corpus(index, target.vocab), max_cached_tokens)
    sources = TextSources(past, max_ngram=max_ngram, min_ngram=min_ngram)
    trees = DraftedTrees.of(target, draft, head, widths, sampled=sampled)
    fuse = partial(pruned, sources=sources, num_first_tokens=num_first_tokens, nodes=nodes)
    return Parts(target, FusedDrafter(trees, sources, fuse), Rejection(), Fixed(max(depth, trees.depth)))
