"""Context-aware dynamic draft trees (Li et al. 2024, EAGLE-2): the most probable paths of a beam search.

Each level extends the most probable paths; at the end the best of all tokens met are kept. Chosen by
probability, they carry no claim and are verified by matching.

Letters: F nodes that are extended, W tokens tried after each, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import PathScores, Plan
from outpace.core.device_copies import on_host
from outpace.core.grower import Grower
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.model.grow import Read, ReadDraftVocabulary
from outpace.sampling.adjust import adjust
from outpace.sampling.topk import at_least_float32, top

EAGLE2_DEPTH = 6  # levels of EAGLE-2's trees


Candidates = NDArray[numpy.void]  # (n,) tokens that may become nodes of a row's tree
CANDIDATE = numpy.dtype(
    [
        ("score", "f8"),  # log of the draft probability of the token's path
        ("depth", "i8"),
        ("parent", "i8"),  # node of the tree of the paths that are extended
        ("token", "i8"),
        ("log_prob", "f8"),  # log of its own draft probability
    ]
)


def dynamic_tree(ctx: Context, plan: Plan, read: Read, *, width: int, num_nodes: int) -> TokenTree:
    """Build a tree of at most `num_nodes` draft tokens per row. At each level the `width` best paths of a row
    are extended by their `width` most probable tokens; all these tokens are candidates, of which the best
    paths stay. With `plan.size` fewer are extended and stay. `read` receives the extended paths only. Draft
    probabilities are those at temperature 1."""
    num_rows = len(ctx.slots)
    grower = Grower(ctx.roots)  # the paths that are extended
    candidates: list[Candidates] = [numpy.empty(0, CANDIDATE)] * num_rows  # most probable paths first
    node_of: dict[tuple[int, int], int] = {}  # node of `grower` and a token after it -> node of that token
    # the nodes that are extended next, and the scores of their paths
    frontier, scores = list(range(num_rows)), numpy.zeros(num_rows)
    levels = 0
    while levels < max(plan.depth, default=0):
        goes_on = [plan.depth[grower.rows[node]] > levels for node in frontier]
        frontier, scores = list(compress(frontier, goes_on)), scores[goes_on]
        if not frontier:
            break
        first, logits, ids = _read(ctx, read, grower.structure() if levels else TokenTree.roots(ctx.roots))
        levels += 1
        found = _most_probable(ctx, grower, frontier, logits, ids, first, width)
        found["depth"], found["score"] = levels, scores[:, None] + found["log_prob"]
        rows = numpy.array([grower.rows[node] for node in frontier])
        newest = [_sorted(found[rows == row].ravel()) for row in range(num_rows)]
        # of equally probable paths the shorter one is first
        candidates = [
            _sorted(numpy.concatenate(pair))[:num_nodes] for pair in zip(candidates, newest, strict=True)
        ]
        best = [
            new[: width if levels < depth else 0]
            for new, depth in zip(_going_on(ctx, newest), plan.depth, strict=True)
        ]
        if plan.size is not None and any(map(len, best)):
            counts = plan.size.extend(_scores(candidates), _scores(best), levels)
            best = [each[:count] for each, count in zip(best, counts, strict=True)]
        extended = numpy.concatenate(best)
        parents, tokens, scores = extended["parent"].tolist(), extended["token"].tolist(), extended["score"]
        frontier = grower.add_chosen(parents, torch.tensor(tokens)) if parents else []
        node_of.update(zip(zip(parents, tokens, strict=True), frontier, strict=True))
    if plan.size is not None and levels:
        counts = plan.size.keep(_scores(candidates), levels)
        candidates = [each[:count] for each, count in zip(candidates, counts, strict=True)]
    return _reranked(ctx, candidates, node_of)


def eagle2_tree(ctx: Context, plan: Plan, read: Read) -> TokenTree:
    """A dynamic tree of EAGLE-2's size for targets of 7B parameters: at most 59 draft tokens per row on
    `EAGLE2_DEPTH` levels, 10 paths extended per level."""
    return dynamic_tree(ctx, plan.within([EAGLE2_DEPTH] * len(plan.depth)), read, width=10, num_nodes=59)


def _read(ctx: Context, read: Read, tree: TokenTree) -> tuple[int, Tensor, Tensor | None]:
    """The forward of ReadDraftVocabulary where the model has it. Over the whole vocabulary if a request
    changes logits, as by a bias: these changes are made by token id."""
    of_draft: object = read
    if isinstance(of_draft, ReadDraftVocabulary) and not any(each.changes_logits for each in ctx.sampling):
        return of_draft.over_draft_vocabulary(tree)
    first, logits = read(tree)
    return first, logits, None


def _most_probable(
    ctx: Context,
    grower: Grower,
    frontier: Sequence[int],
    logits: Tensor,
    ids: Tensor | None,
    first: int,
    width: int,
) -> Candidates:  # (F, W)
    """The most probable tokens after each node of `frontier`, without depth and score. `logits`: after the
    nodes from `first` on, of the tokens `ids`; None: of all."""
    if len(frontier) < len(logits):
        logits = logits[[node - first for node in frontier]]
    log_probs = at_least_float32(adjust(logits, ctx, grower, frontier)).log_softmax(-1)
    values, columns = top(log_probs, min(width, log_probs.shape[-1]))
    tokens, values = on_host(columns if ids is None else ids[columns], values)
    found = numpy.empty(tokens.shape, CANDIDATE)
    found["token"], found["log_prob"] = tokens.numpy(), values.numpy()
    found["parent"] = numpy.array(frontier)[:, None]
    return found


def _sorted(candidates: Candidates) -> Candidates:
    """The candidates whose probability is not 0, by falling probability of their paths."""
    order = numpy.argsort(-candidates["score"], kind="stable")
    return candidates[order[candidates["score"][order] > -numpy.inf]]


def _going_on(ctx: Context, candidates: list[Candidates]) -> list[Candidates]:
    """Those of each row's candidates after which its text goes on."""
    stops = ctx.stops
    if stops is None:
        return candidates
    return [each[~numpy.isin(each["token"], ends)] for each, ends in zip(candidates, stops, strict=True)]


def _scores(candidates: Sequence[Candidates]) -> list[PathScores]:
    return [each["score"] for each in candidates]


def _reranked(ctx: Context, kept: Sequence[Candidates], node_of: Mapping[tuple[int, int], int]) -> TokenTree:
    """The tree of each row's best candidates. A path is never more probable than its beginning, and of equal
    ones the shorter stays, so the parents of kept candidates are kept too."""
    parents, tokens = [-1] * len(ctx.slots), ctx.roots.tolist()
    log_probs, place = [0.0] * len(ctx.slots), {row: row for row in range(len(ctx.slots))}
    together = numpy.concatenate(kept)
    for _, _, parent, token, log_prob in together[numpy.argsort(together["depth"], kind="stable")].tolist():
        if (node := node_of.get((parent, token))) is not None:
            place[node] = len(tokens)
        parents.append(place[parent])
        tokens.append(token)
        log_probs.append(log_prob)
    forest = Forest.of(parents, len(ctx.slots))
    return TokenTree(torch.tensor(tokens), forest, torch.tensor(log_probs))
