"""Drafts drawn from the target's own mean probabilities after n-grams (Song et al. 2025).

Letters: F nodes that get children, K tokens known after each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.core.grower import Grower
from outpace.indexes.logit_ngrams import LogitNGrams
from outpace.sampling.warp import warp


class _Node(NamedTuple):
    """A node that may get children."""

    node: int
    children: Sequence[int]  # nodes of the template below the one that it stands for
    text: list[int]  # the last tokens up to it


class _Parent(NamedTuple):
    """A node that gets children, and what is known after it."""

    node: int
    count: int
    ids: list[int]  # (K,) likeliest first
    means: list[float]  # (K,)


class LogitNGram:
    """core.contracts.Drafter by a table of n-grams, shared by all requests.

    It learns from the nodes that were accepted, at temperature 1 and before truncation; what it drafts is drawn at the
    request's own, without replacement. A table that is full starts anew.
    """

    claims: tuple[type[Claim], ...] = (Drawn,)
    shared = True

    def __init__(
        self, vocab: int, *, longest: int = 4, width: int = 10, room: int = 1 << 18, prompt: bool = False
    ) -> None:
        self.want = Want(prompt_logits=prompt)
        self.table = LogitNGrams(longest, min(width, vocab), room)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        assert plan.shape is not None, "this drafter fills a template"
        grower, below, longest = Grower(ctx.roots), plan.shape.children, self.table.longest
        frontier = [_Node(row, below[0], tokens[-longest:].tolist()) for row, tokens in enumerate(ctx.tokens)]
        for level in range(max(plan.depth)):
            parents: list[_Parent] = []
            above: dict[int, _Node] = {}
            for each in frontier:
                if each.children and plan.depth[grower.rows[each.node]] > level:
                    length, ids, means = self.table.lookup(each.text)
                    if length:
                        above[each.node] = each
                        parents.append(_Parent(each.node, min(len(each.children), len(ids)), ids, means))
            if not parents:
                break
            first = len(grower)
            tokens = self._extend(grower, parents, ctx)
            frontier = []
            ranks = dict.fromkeys(above, 0)
            for node, token in enumerate(tokens, first):
                parent = grower.parents[node]
                over, rank = above[parent], ranks[parent]
                ranks[parent] = rank + 1
                frontier.append(_Node(node, below[over.children[rank]], [*over.text, token][-longest:]))
        return Draft(grower.tree())

    def _extend(self, grower: Grower, parents: list[_Parent], ctx: Context) -> list[int]:
        """Add the children of these nodes: drawn in the rows that sample, the likeliest in the others; their tokens."""
        drawn = [each for each in parents if not ctx.sampling[grower.rows[each.node]].greedy]
        chosen = [each for each in parents if ctx.sampling[grower.rows[each.node]].greedy]
        tokens: list[int] = []
        if drawn:
            self.draw(grower, drawn, ctx)
            tokens += grower.newest.tolist()
        if chosen:
            nodes = [each.node for each in chosen for _ in range(each.count)]
            likeliest = [token for each in chosen for token in each.ids[: each.count]]
            grower.add_chosen(nodes, torch.tensor(likeliest))
            tokens += likeliest
        return tokens

    def draw(self, grower: Grower, parents: list[_Parent], ctx: Context) -> None:
        """Draw children of these nodes from what is known after them."""
        most = self.table.width
        ids = torch.tensor([each.ids + [0] * (most - len(each.ids)) for each in parents])
        # float64: these laws are narrow, so it costs nothing, and they sum to 1 the more nearly
        means = torch.tensor([each.means + [0.0] * (most - len(each.ids)) for each in parents], dtype=torch.float64)
        q = warp(means.log(), [ctx.sampling[grower.rows[each.node]] for each in parents])
        grower.add_drawn([each.node for each in parents], q, [each.count for each in parents], ctx.noise, ids)

    def observe(self, step: Step) -> None:
        if step.scores.logits is None:
            return
        table, tree = self.table, step.draft.tree
        if len(table) == table.room:
            table.clear()
        paths = [tree.forest.path(leaf) for leaf in step.kept]
        best = step.scores.logits[[node for path in paths for node in path]].float().softmax(-1).topk(table.width)
        ids, probs, at = best.indices.cpu().numpy(), best.values.cpu().numpy(), 0
        for row, path in enumerate(paths):
            text = [*step.ctx.tokens[row][-table.longest :].tolist(), *tree.tokens[path[1:]].tolist()]
            end = at + len(path)
            table.update(text, ids[at:end], probs[at:end])
            at = end

    def release(self, slots: Sequence[int]) -> None:
        """Nothing kept by request."""
