"""STAND (Song et al. 2025): draw the draft from the target's mean probabilities after the same n-gram.

New here: NGramProbabilityDrafter, with its table. Reuses: rank_template, Rejection, Fixed. Exact at any
temperature: siblings are drawn without replacement from the mean probabilities stored for the last
`max_ngram` tokens, or fewer down to 2, and claim the distribution they were drawn from, at the request's own
temperature and truncation. The paper perturbs log probabilities with precomputed Gumbel noise and keeps the
largest, which gives the same distribution. At temperature 0 the most probable tokens are chosen, without a
claim.

The table holds up to 2^18 n-grams of about 220 bytes each, learns from accepted nodes and persists across
requests; when it is full it is cleared. The draft tree has a fixed shape of 80 nodes, weighted towards the
most probable tokens. The paper's has the 80 nodes accepted most often in a wide tree on other problems:
`outpace.drafters.lookup.rank_template.fitted(accepted_ranks(steps), 80).parents`, from the steps of such a
run. The preset `cpu` has 24 nodes, for hardware on which a forward over many tokens costs more than one over
few.

Use it where a problem is answered many times, as in majority voting among samples: the first answer gains
little, later ones more and more.

Letters: F nodes that get children, K tokens stored per n-gram.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Step, Target, Want, recipe
from outpace.core.grower import Grower
from outpace.core.tree import Shape, TokenTree
from outpace.drafters.compose.union import merged_trees
from outpace.drafters.lookup.rank_template import cut, rank_template
from outpace.indexes.candidates import NO_CANDIDATES, candidate_tree
from outpace.recipes.training_free.stand.ngram_probabilities import NGramProbabilities
from outpace.sampling.topk import top
from outpace.sampling.warp import warp
from outpace.verifiers.rejection import Rejection


@recipe(
    paper="arXiv:2506.04708",
    family="training-free",
    proven_with={"nodes": 24},
    presets={"cpu": {"nodes": 24}},
)
def stand(
    target: Target,
    *,
    nodes: int = 80,
    nodes_per_depth: tuple[int, ...] = (),
    parents: tuple[int, ...] | None = None,
    max_ngram: int = 4,
    top_k: int = 10,
    learn_from_prompts: bool = False,
) -> Parts:
    """A tree of fixed shape, drawn from a table of next-token probabilities after n-grams.

    Args:
        nodes: draft tokens per step
        nodes_per_depth: draft tokens at each depth, in place of `nodes`
        parents: parent of each draft node, 0 is the root; a tree of any shape in place of `nodes`
        max_ngram: tokens of the longest n-gram in the table
        top_k: most probable next tokens stored for an n-gram
        learn_from_prompts: also learn from prompts, which needs the logits of every prompt token
    """
    shape = rank_template(nodes, nodes_per_depth, width=top_k) if parents is None else Shape(parents)
    if target.chains_only and shape.parents != tuple(range(len(shape.parents))):
        raise ValueError(
            "this target reads drafts that are chains, and stand draws a tree: give nodes_per_depth=1,1,1,1"
        )
    drafter = NGramProbabilityDrafter(
        target.vocab, max_ngram=max_ngram, top_k=top_k, learn_from_prompts=learn_from_prompts
    )
    return Parts(target, drafter, Rejection(), Fixed(shape))


class _Node(NamedTuple):
    """A tree node that may get children."""

    node: int
    children: Sequence[int]  # children, in `plan.shape`, of the node that it stands for
    text: list[int]  # the last `max_ngram` tokens, this node's included


class _Parent(NamedTuple):
    """A tree node that gets `count` children, drawn from row `row` of the n-gram table."""

    node: int
    count: int
    row: int


class NGramProbabilityDrafter:
    """Implementation of core.contracts.Drafter that draws from a table of next-token probabilities after
    n-grams, shared by all requests.

    It learns from accepted nodes the target's distribution at temperature 1, without truncation; drafts are
    drawn without replacement at the request's own temperature and truncation. A full table is cleared.
    """

    claims: tuple[type[Claim], ...] = (Drawn,)
    learns_across_rows = True
    drafts_across_rows = False

    def __init__(
        self,
        vocab: int,
        *,
        max_ngram: int = 4,
        top_k: int = 10,
        capacity: int = 1 << 18,
        learn_from_prompts: bool = False,
    ) -> None:
        self.want = Want(prompt_logits=learn_from_prompts)
        self._device = torch.device("cpu")  # device of the target's logits, to which q is moved
        self.table = NGramProbabilities(max_ngram, min(top_k, vocab), capacity)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        assert plan.shape is not None, "this drafter fills a template"
        sampled = [row for row, params in enumerate(ctx.sampling) if not params.greedy and plan.depth[row]]
        found = [
            NO_CANDIDATES
            if not params.greedy or not depth
            else self.table.draft(self._last(tokens), cut(plan.shape, depth))
            for tokens, params, depth in zip(ctx.tokens, ctx.sampling, plan.depth, strict=True)
        ]
        tree = candidate_tree(ctx.roots, found)
        if not sampled:
            return Draft(tree)
        drawn = self._drawn(ctx, plan, sampled)
        return Draft(drawn if len(tree) == len(found) else merged_trees(tree, drawn))

    def _drawn(self, ctx: Context, plan: Plan, rows: Sequence[int]) -> TokenTree:
        """Draft trees of these rows in the shape of `plan`, as far as the n-gram table has entries: tokens
        are drawn from the table's probabilities, which the tree's claim records as q."""
        assert plan.shape is not None
        grower, below, table = Grower(ctx.roots), plan.shape.children, self.table
        frontier = [_Node(row, below[0], self._last(ctx.tokens[row])) for row in rows]
        for level in range(max(plan.depth)):
            live = [each for each in frontier if each.children and plan.depth[grower.rows[each.node]] > level]
            table_rows = table.rows([each.text for each in live])
            sizes = (table.tokens[table_rows] >= 0).sum(1).tolist()
            above = {each.node: each for each, row in zip(live, table_rows, strict=True) if row >= 0}
            parents = [
                _Parent(each.node, min(len(each.children), size), row)
                for each, size, row in zip(live, sizes, table_rows.tolist(), strict=True)
                if row >= 0
            ]
            if not parents:
                break
            first = len(grower)
            self.draw(grower, parents, ctx)
            frontier = []
            ranks = dict.fromkeys(above, 0)
            for node, token in enumerate(grower.newest.tolist(), first):
                parent = grower.parents[node]
                over, rank = above[parent], ranks[parent]
                ranks[parent] = rank + 1
                frontier.append(_Node(node, below[over.children[rank]], [*over.text[1:], token]))
        tree = grower.tree()
        claim = tree.claim
        if isinstance(claim, Drawn) and claim.ids is not None and claim.q.device != self._device:
            claim = replace(claim, q=claim.q.to(self._device), ids=claim.ids.to(self._device))
            tree = replace(tree, claim=claim)
        return tree

    def _last(self, tokens: Tensor) -> list[int]:
        found = tokens[-self.table.max_ngram :].tolist()
        return [-1] * (self.table.max_ngram - len(found)) + found

    def draw(self, grower: Grower, parents: list[_Parent], ctx: Context) -> None:
        """Draw the children of these nodes from the mean probabilities in their rows of the table."""
        rows = [each.row for each in parents]
        ids = torch.from_numpy(self.table.tokens[rows]).long().clamp_(min=0)
        # float64 costs nothing with so few columns, and the probabilities sum more exactly to 1
        means = torch.from_numpy(self.table.means[rows]).double()
        q = warp(means.log_(), [ctx.sampling[grower.rows[each.node]] for each in parents])
        grower.add_drawn([each.node for each in parents], q, [each.count for each in parents], ctx.noise, ids)

    def observe(self, step: Step) -> None:
        if step.scores.logits is None:
            return
        table, tree = self.table, step.draft.tree
        self._device = step.scores.logits.device
        if len(table) == table.capacity:
            table.clear()
        paths = [tree.forest.path(leaf) for leaf in step.kept]
        distribution = step.scores.logits[[node for path in paths for node in path]].float().softmax(-1)
        probs, ids = (found.cpu().numpy() for found in top(distribution, table.width))
        at = 0
        for row, path in enumerate(paths):
            text = [*step.ctx.tokens[row][-table.max_ngram :].tolist(), *tree.tokens[path[1:]].tolist()]
            end = at + len(path)
            table.update(text, ids[at:end], probs[at:end])
            at = end

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""
