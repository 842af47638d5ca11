"""Draft trees that begin at places of a training text, drafted and scored as in decoding.

A tree at column t (see training.lessons.lesson) begins with token t + 1 of the text as its root.

Letters: T tokens, C = T - 1 columns, P trees, N nodes, K tokens of the draft vocabulary, F size of a feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import NOTHING, Cache, Plan
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.model.grow import Growth
from outpace.models.draft_vocabulary import over_vocabulary
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.text_reader import TextReader
from outpace.models.hf.target import HFTarget


@torch.no_grad()
def drafted_trees(
    head: DraftHead,
    target: HFTarget,
    cache: Cache,  # of the target; nothing is read or written
    tokens: Tensor,  # (T,) int64 on the host
    features: Tensor,  # (C, F)
    columns: Sequence[int],  # (P,)
    growth: Growth,
    depth: int,
) -> TokenTree:
    """The trees that a head drafts at these columns, one row each."""
    count = len(columns)
    lengths = tuple([column + 2 for column in columns])
    ctx = Context(
        tokens=tuple([tokens[:length] for length in lengths]),
        committed=lengths,
        max_draft_depth=(depth,) * count,
        slots=tuple(range(count)),
        cache=cache,
        sampling=(SamplingParams(),) * count,
        noise=KeyedNoise([0] * count, [0] * count, lengths),
    )
    return growth(ctx, Plan((depth,) * count), _Reader(head, target.vocab, tokens, features, columns))


class _Reader:
    """Implementation of drafters.model.grow.ReadDraftVocabulary by a `TextReader`."""

    def __init__(
        self, head: DraftHead, vocab: int, tokens: Tensor, features: Tensor, columns: Sequence[int]
    ) -> None:
        self._head, self._vocab = head, vocab
        self._reader = TextReader(head, tokens, features, columns)

    def __call__(self, tree: TokenTree) -> tuple[int, Tensor]:
        first, logits, ids = self.over_draft_vocabulary(tree)
        return first, over_vocabulary(logits, ids, self._vocab)

    def over_draft_vocabulary(self, tree: TokenTree) -> tuple[int, Tensor, Tensor | None]:
        head, first = self._head, len(self._reader.outputs)
        if len(tree) == first:  # the roots alone
            return 0, head.lm_head(head.norm(self._reader.outputs)), head.draft_ids
        self._reader.read(tree.tokens[first:], tree.forest.parents[first:])
        return first, head.lm_head(head.norm(self._reader.outputs[first:])), head.draft_ids


@dataclass(frozen=True, eq=False)
class ScoredTrees:
    """Draft trees, one row each, with what the target says of their nodes."""

    tree: TokenTree  # of N nodes
    probs: Sequence[float]  # (N,) the target's probability of a node's token after its parent; of roots 1
    best: Sequence[int]  # (N,) the target's most probable token after each node

    def rewards(self) -> Tensor:  # (P,) float64
        """The logarithm of the sum, over the paths from a root to its leaves, of exp(L): L is the number of
        tokens of the path that are accepted in the mean, if each is with its probability."""
        forest = self.tree.forest
        reached, lengths = [1.0] * len(forest), [0.0] * len(forest)
        of_leaves: list[list[float]] = [[] for _ in range(forest.num_rows)]
        for node, above in enumerate(forest.parents):
            if above >= 0:
                reached[node] = reached[above] * self.probs[node]
                lengths[node] = lengths[above] + reached[node]
            if not forest.children[node]:
                of_leaves[forest.rows[node]].append(lengths[node])
        return torch.stack([torch.tensor(each, dtype=torch.float64).logsumexp(0) for each in of_leaves])

    def accepted(self) -> list[list[int]]:  # (P,)
        """The tokens of each tree that a step at temperature 0 accepts."""
        forest, tokens = self.tree.forest, self.tree.tokens.tolist()
        paths: list[list[int]] = []
        for root in range(forest.num_rows):
            path, below = list[int](), [root]
            while below:
                node = below[0]
                below = [child for child in forest.children[node] if tokens[child] == self.best[node]]
                path += [tokens[child] for child in below]
            paths.append(path)
        return paths


@torch.no_grad()
def scored_trees(
    target: HFTarget,
    cache: Cache,  # of the target; its slot 0 has the beginning of the text, up to the first column at most
    tokens: Tensor,  # (T,) int64 on the host
    columns: Sequence[int],  # (P,) adjacent, in increasing order
    trees: Sequence[TokenTree],  # with one row for each column
) -> list[ScoredTrees]:
    """Score trees with one forward of the target, in which the text between their roots is a chain that they
    branch off. Slot 0 has the text up to the first column afterwards."""
    first, count = columns[0], len(columns)
    if len(read := tokens[cache.lengths[0] : first + 1]):
        target.keep([read], [0], cache, NOTHING)
    parents, parts = list(range(-1, count - 1)), [tokens[first + 1 : first + 1 + count]]
    places: list[list[int]] = []  # of each tree's nodes in the tree that is scored
    for tree in trees:
        place = list(range(count))
        for above in tree.forest.parents[count:]:
            place.append(len(parents))
            parents.append(place[above])
        places.append(place)
        parts.append(tree.tokens[count:].cpu())
    scored = TokenTree(torch.cat(parts), Forest.of(parents, 1))
    logits = target.score(scored, [0], cache).logits
    cache.discard()
    assert logits is not None
    log_probs = logits.float().log_softmax(-1)
    best = logits.argmax(-1).tolist()
    above = torch.tensor(parents, device=logits.device)
    probs = log_probs[above].gather(1, scored.tokens.to(logits.device)[:, None])[:, 0].exp().tolist()
    return [
        ScoredTrees(
            tree, [1.0] * count + [probs[node] for node in place[count:]], [best[node] for node in place]
        )
        for tree, place in zip(trees, places, strict=True)
    ]
