"""Building a draft tree level by level from a model's logits: children are drawn, with their distributions q
recorded, or are the most probable tokens.

Letters: F frontier nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Choose, Ends, Frontier, Plan, Stop
from outpace.core.device_copies import indices
from outpace.core.grower import DRAFT, Grower
from outpace.core.noise import Key, Noise
from outpace.core.tree import Forest, TokenTree
from outpace.sampling.adjust import adjust
from outpace.sampling.topk import argmax, at_least_float32, top
from outpace.sampling.warp import warp

# one forward over the tree so far -> (first node that was computed, logits of it and all later nodes)
Read = Callable[[TokenTree], tuple[int, Tensor]]
Growth = Callable[[Context, Plan, Read], TokenTree]  # builds the draft tree of a step


@runtime_checkable
class ReadChain(Protocol):
    """A `Read` that may be able to draft a chain in one call, when there is one row."""

    def chain(self, depth: int, choose: Choose | None, ends: Ends | None) -> Tensor | None:  # (D,)
        """The tokens of a chain below the root, chosen one after the other by `choose` from logits (1, V);
        None for `choose`: the most probable ones. It has `depth` tokens, or fewer if it `ends` before.
        Returns None if the chain has to be read level by level."""
        ...


@runtime_checkable
class ReadDraftVocabulary(Protocol):
    """A `Read` of a model that may draft only some of the target's tokens."""

    def over_draft_vocabulary(self, tree: TokenTree) -> tuple[int, Tensor, Tensor | None]:  # N, K
        """A forward as by `Read`, without the tokens that cannot be drafted: the first node, its and all
        later nodes' logits (N, K), and the token of each logit (K,), None for all tokens in their order."""
        ...


@runtime_checkable
class ReadHidden(Protocol):
    """A `Read` of a model whose hidden states at the nodes that were read are known."""

    def hidden(self, nodes: Sequence[int]) -> Tensor:  # (M,) -> (M, D)
        """The model's states after these nodes, at the input of its LM head."""
        ...


@runtime_checkable
class PredictsSurvival(Protocol):
    """A `Read` whose draft model can also predict the probability that its draft tokens are accepted, as
    heads of DSpark do."""

    def survival(self, tree: TokenTree, nodes: Sequence[int]) -> list[float] | None:  # (M,) -> (M,)
        """For each of these nodes the predicted probability that the tokens on the path to it and the one
        drafted after it are all accepted. Only if this is known without another forward, else None."""
        ...


# (grower, nodes (F,), number of children of each (F,), their distributions q (F, V), noise) -> the new nodes,
# one entry per draw: a node that was drawn several times is listed as often
AddChildren = Callable[[Grower, Sequence[int], Sequence[int], Tensor, Noise], list[int]]


def with_replacement(
    grower: Grower, at: Sequence[int], widths: Sequence[int], q: Tensor, noise: Noise
) -> list[int]:
    """Draw children independently of one another; equal tokens become separate nodes. Returns the new
    nodes."""
    return grower.add_drawn(at, q, widths, noise, replace=True)


def without_replacement(
    grower: Grower, at: Sequence[int], widths: Sequence[int], q: Tensor, noise: Noise
) -> list[int]:
    """Draw the children of each node one after the other, without replacement. Returns the new nodes."""
    return grower.add_drawn(at, q, widths, noise)


def merged_draws(
    grower: Grower, at: Sequence[int], widths: Sequence[int], q: Tensor, noise: Noise
) -> list[int]:
    """Draw children independently of one another; equal tokens below a node become one node, scored once.
    Returns one node per draw."""
    added: list[int] = []
    for width in sorted(set(widths)):  # one call per width: a merged draw has one width for all its nodes
        picked = [index for index, each in enumerate(widths) if each == width]
        rows = q if len(picked) == len(at) else q[picked]
        nodes = [at[index] for index in picked]
        added += grower.add_drawn(nodes, rows, width, noise, replace=True, merge=True)
    return added


def grow(
    ctx: Context,
    plan: Plan,
    read: Read,
    *,
    sampled: bool = True,
    children: AddChildren = without_replacement,
    given: Sequence[Sequence[int]] | None = None,
    record_probs: bool = False,  # keep the draft probability of every node even if `plan.stop` is None
) -> TokenTree:
    """Build the tree of `plan` below every row's root; `read` is called once per level, with the whole tree
    so far.

    Rows at temperature 0, or all rows without `sampled`, get the most probable tokens as children: draws
    without replacement from a one-hot distribution would end after one child. In the other rows `children`
    draws them from the distributions at the frontier nodes. `given` are tokens per row that are inserted
    between its root and the draft, not counted in the plan's depth: committed text that later text may
    tokenize otherwise.
    """
    is_plain = given is None and plan.stem is None and plan.shape is None and not record_probs
    if is_plain and min(plan.depth) == max(plan.depth):
        greedy = {not sampled or each.greedy for each in ctx.sampling}
        if len(greedy) == 1:
            tree = _chains(ctx, plan, read, None if greedy.pop() else children)
            if tree is not None:
                return tree
    record_probs = record_probs or plan.stop is not None
    grower = Grower(ctx.roots, confidence=record_probs)
    ends = range(len(plan.depth)) if given is None else chosen_chains(grower, given)
    if plan.stem is not None:
        ends = _leaves_of_stem(grower, plan.stem, plan.depth, ctx.max_draft_depth)
    frontier = [node for node in ends if plan.depth[grower.rows[node]] > 0]
    # tree node -> the nodes of `plan.shape` that it fills: several where equal draws were merged
    shape_nodes: dict[int, list[int]] = {node: [0] for node in frontier}
    below: dict[int, list[int]] = {}  # tree node -> the children of those nodes in `plan.shape`
    stops = _Stops(plan, grower)
    for level in range(max(plan.depth, default=0)):
        if plan.shape is not None:
            below = {
                node: [c for s in shape_nodes[node] for c in plan.shape.children[s]] for node in frontier
            }
            frontier = [node for node in frontier if below[node]]
        if level and min(plan.depth) <= level:
            frontier = [node for node in frontier if plan.depth[grower.rows[node]] > level]
        if plan.stem is not None:  # paths are longer than the plan's depth
            rows, room = grower.rows, ctx.max_draft_depth
            frontier = [node for node in frontier if grower.depth(node) < room[rows[node]]]
        if level and not plan.stop_reads:
            frontier = stops.going_on(frontier, read)
        if not frontier:
            break
        has_roots_only = not level and given is None and plan.stem is None
        first, logits = read(TokenTree.roots(ctx.roots) if has_roots_only else grower.structure())
        if level and plan.stop_reads:
            frontier = stops.going_on(frontier, read)
            if not frontier:
                break
        if len(frontier) != len(logits):
            logits = logits[indices([node - first for node in frontier], logits.device)]
        stops.record(frontier, logits)
        logits = adjust(logits, ctx, grower, frontier)
        widths = [1] * len(frontier)
        if plan.shape is not None:
            widths = [len(below[node]) for node in frontier]
        before = len(grower)
        added = add_children(grower, frontier, widths, logits, ctx, sampled, children)
        if plan.shape is not None:
            ranks = dict.fromkeys(frontier, 0)
            for node in added:
                above = grower.parents[node]
                shape_nodes.setdefault(node, []).append(below[above][ranks[above]])
                ranks[above] += 1
        frontier = going_on(ctx, grower, before)
    return grower.tree()


def going_on(ctx: Context, grower: Grower, first: int) -> list[int]:
    """The nodes from `first` on after which the texts of their rows go on."""
    nodes = range(first, len(grower))
    return ctx.going_on(nodes, grower.tokens_from(first), grower.rows[first:]) if nodes else []


class _Stops:
    """Asks a plan which leaves of a draft get no children."""

    def __init__(self, plan: Plan, grower: Grower) -> None:
        self._plan, self._grower = plan, grower
        self._row: dict[int, int] = {}  # node of the last level -> its row of `_logits`
        self._logits = torch.empty(0)  # (F, V) of that level's nodes, before sampling parameters

    def record(self, nodes: Sequence[int], logits: Tensor) -> None:  # (F,), (F, V)
        """Keep the logits from which the children of these nodes are drawn or chosen."""
        if self._plan.stop is not None:
            self._row = {node: row for row, node in enumerate(nodes)}
            self._logits = logits

    def going_on(self, leaves: list[int], read: Read) -> list[int]:
        """Those of these leaves that get children; with `Plan.stop_reads` the model has read them."""
        grower, stop = self._grower, self._plan.stop
        if stop is None or not leaves:
            return leaves
        at = [self._row[grower.parents[node]] for node in leaves]
        logits = self._logits if at == list(range(len(self._logits))) else self._logits[at]
        reader: object = read
        reads = self._plan.stop_reads and isinstance(reader, ReadHidden)
        frontier = Frontier(
            [grower.rows[node] for node in leaves],
            grower.path_probs(leaves),
            logits,
            reader.hidden(leaves) if reads else None,
            reader.survival(grower.structure(), leaves) if isinstance(reader, PredictsSurvival) else None,
        )
        return [node for node, stopped in zip(leaves, stop(frontier), strict=True) if not stopped]


def _leaves_of_stem(grower: Grower, stem: TokenTree, depth: Sequence[int], room: Sequence[int]) -> list[int]:
    """Add the nodes of a stem, not drawn and therefore verified by matching, and return its leaves. Of rows
    without a draft, and below the depth for which a row has `room`, its nodes are left out."""
    forest = stem.forest
    kept = [
        node
        for node in range(forest.num_rows, len(stem))
        if depth[forest.rows[node]] and forest.depths[node] <= room[forest.rows[node]]
    ]
    roots = range(forest.num_rows)
    place = dict(zip((*roots, *kept), range(len(roots) + len(kept)), strict=True))
    if kept:
        draft_probs = torch.ones(len(kept)) if grower.keeps_confidence else None
        grower.add_chosen([place[forest.parents[node]] for node in kept], stem.tokens[kept], draft_probs)
    return [place[node] for node in place if place.keys().isdisjoint(forest.children[node])]


def chosen_chains(grower: Grower, chains: Sequence[Sequence[int]]) -> list[int]:
    """Add a chain of given tokens below every root, not drawn and therefore verified by matching; returns the
    last node of each row."""
    ends = list(range(len(chains)))
    for level in range(max(map(len, chains))):
        rows = [row for row, chain in enumerate(chains) if len(chain) > level]
        tokens = torch.tensor([chains[row][level] for row in rows])
        draft_probs = torch.ones(len(rows)) if grower.keeps_confidence else None
        for row, node in zip(
            rows, grower.add_chosen([ends[row] for row in rows], tokens, draft_probs), strict=True
        ):
            ends[row] = node
    return ends


def _chains(ctx: Context, plan: Plan, read: Read, children: AddChildren | None) -> TokenTree | None:
    """`grow` for the usual case: chains of one length, unless a text ends before, in rows that are all greedy
    (`children` is None) or all sampled. None if the plan may end them before and they are not drafted in one
    call."""
    depth, changes_logits = plan.depth[0], any(params.changes_logits for params in ctx.sampling)
    alone = len(ctx.slots) == 1 and children in (None, with_replacement, without_replacement)
    in_one_call: object = read
    if alone and not changes_logits and not plan.stop_reads and isinstance(in_one_call, ReadChain):
        tree = _chain_in_one_call(ctx, depth, in_one_call, children, plan.stop)
        if tree is not None:
            return tree
    if plan.stop is not None:
        return None
    grower = Grower(ctx.roots)
    frontier, sampling = list(range(len(ctx.slots))), ctx.sampling
    for level in range(depth):
        first, logits = read(grower.structure() if level else TokenTree.roots(ctx.roots))
        if len(frontier) < len(logits):
            logits = logits[indices([node - first for node in frontier], logits.device)]
            sampling = tuple([ctx.sampling[grower.rows[node]] for node in frontier])
        if changes_logits:
            logits = adjust(logits, ctx, grower, frontier)
        before = len(grower)
        if children is None:
            grower.add_chosen(frontier, argmax(logits))
        else:
            children(grower, frontier, [1] * len(frontier), warp(logits, sampling), ctx.noise)
        frontier = going_on(ctx, grower, before)
        if not frontier:
            break
    return grower.tree()


def _chain_in_one_call(
    ctx: Context, depth: int, read: ReadChain, children: AddChildren | None, stop: Stop | None
) -> TokenTree | None:
    """`grow` of one chain: the same tokens with the same claim, drawn one after the other, and with `stop`
    the same draft probabilities."""
    distributions, path = list[Tensor](), list[float]()  # of the tokens so far
    last: list[Tensor] = []  # the logits before the last token
    stops, tokens = ctx.sampling[0].stop, list[int]()

    def draw(logits: Tensor) -> int:
        level, q = len(distributions), warp(logits, ctx.sampling)
        distributions.append(q)
        tokens.append(token := int(ctx.noise.choose(q, Key((0,), (level,), (level,), DRAFT))))
        if stop is not None:
            path.append(q[0, token].item())
            last[:] = [logits]
        return token

    def most_probable(logits: Tensor) -> int:
        tokens.append(token := int(argmax(logits)))
        if stop is not None:
            path.append(at_least_float32(logits).softmax(-1)[0, token].item())
            last[:] = [logits]
        return token

    def ends() -> bool:
        if tokens[-1] in stops or stop is None:
            return tokens[-1] in stops
        [ended] = stop(Frontier([0], [list(path)], last[0]))
        return ended

    may_end = bool(stops) or stop is not None
    greedy = most_probable if may_end else None
    found = read.chain(depth, greedy if children is None else draw, ends if may_end else None)
    if found is None:
        return None
    count, claim = len(found), None
    if children is not None:
        claim = Drawn(torch.cat(distributions), (-1, *range(count)), (children is with_replacement,) * count)
    confidence = None if stop is None else torch.tensor([1.0, *path]).log()
    return TokenTree(torch.cat((ctx.roots, found)), Forest.chain((count,)), confidence, claim)


def add_children(
    grower: Grower,
    at: list[int],
    widths: list[int],
    logits: Tensor,
    ctx: Context,
    sampled: bool,
    children: AddChildren,
) -> list[int]:
    """Add children to the nodes `at`: drawn in rows that sample, the most probable tokens in greedy rows.
    Returns the new nodes."""
    drawn = [sampled and not ctx.sampling[grower.rows[node]].greedy for node in at]
    if all(drawn):
        q = warp(logits, [ctx.sampling[grower.rows[node]] for node in at])
        return children(grower, at, widths, q, ctx.noise)
    added: list[int] = []
    if not any(drawn):
        added = _choose(grower, at, widths, logits)
    else:
        for kind in (True, False):
            picked = [index for index, each in enumerate(drawn) if each is kind]
            rows = logits[indices(picked, logits.device)]
            part = [at[index] for index in picked], [widths[index] for index in picked], rows
            added += add_children(grower, *part, ctx, kind, children)
    return added


def _choose(grower: Grower, at: Sequence[int], widths: Sequence[int], logits: Tensor) -> list[int]:
    logits, max_width = at_least_float32(logits), min(max(widths), logits.shape[-1])
    ids = argmax(logits)[:, None] if max_width == 1 else top(logits, max_width)[1]
    tokens, nodes = (
        ids.flatten(),
        list(at) if max_width == 1 else [node for node in at for _ in range(max_width)],
    )
    draft_probs = logits.softmax(-1).gather(1, ids).flatten() if grower.keeps_confidence else None
    if min(widths) < max_width:
        pairs = [(m, j) for m, width in enumerate(widths) for j in range(min(width, max_width))]
        picked = indices([m * max_width + j for m, j in pairs], tokens.device)
        nodes, tokens = [at[m] for m, _ in pairs], tokens[picked]
        draft_probs = None if draft_probs is None else draft_probs[picked]
    return grower.add_chosen(nodes, tokens, draft_probs)
