"""Multi-sample inference (Li et al. 2025): samples of one prompt draft from the text of the other samples.

New here: Consensus. Reuses: Match, Fixed. Exact at any temperature, and the samples stay independent of one
another: a draft is made of tokens that other samples generated before the step, it carries no claim, and the
target draws every token with the sample's own noise. The proof enumerates the joint distribution of two and
three samples.

Rows of one batch with equal prompts are samples of one prompt, as `n` requests them. The last tokens of a row
are looked up in the other samples, and the longest matches are merged into a graph: equal tokens at an equal
distance from the match are one node, and the weight of an edge is the match length times the target's
probability of the token, summed over the samples that contain it. The draft follows the heaviest edges. The
text of a sample that has ended is still searched; when the last of them ends, all texts of the prompt are
dropped. A single sample, or the one that is ahead of the others, decodes plainly.

Use it for voting among answers, best-of-n and other uses of many samples, the more the better. Set `batch` to
at least `n`: other batches are not searched. Samples that generate identical text in step help each other
little, because none is ahead. `min_ngram` 1 drafts and accepts more tokens, at a lower acceptance rate.

The authors published no code. Here the weight of a match is its length, probabilities are the target's before
temperature, matches of all lengths are merged, and prompts are not searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice

import torch

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Step, Target, Want, recipe
from outpace.drafters.lookup.text_lookup import chain
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree, candidate_tree
from outpace.verifiers.match import Match

SCANNED = 4  # occurrences examined per occurrence that may be merged


@recipe(paper="arXiv:2503.05330", family="training-free")
def multi_sample(
    target: Target,
    *,
    depth: int = 10,
    max_ngram: int = 4,
    min_ngram: int = 2,
    min_share: float = 0.3,
    tree: bool = False,
    nodes: int = 16,
    max_matches: int = 32,
) -> Parts:
    """Drafts retrieved from the other samples of the same prompt, verified by matching.

    Args:
        depth: maximum number of tokens drafted per step
        max_ngram: maximum length of a match of the last tokens
        min_ngram: minimum length of a match
        min_share: minimum share of a draft token in the weight of all edges out of its parent
        tree: draft a tree in place of a chain
        nodes: maximum number of draft tokens per step, with `tree`
        max_matches: maximum number of matches that are merged, the longest first
    """
    drafter = Consensus(
        max_ngram, min_ngram, min_share=min_share, tree=tree, nodes=nodes, max_matches=max_matches
    )
    return Parts(target, drafter, Match(), Fixed(depth))


class Consensus:
    """A drafter (core.contracts.Drafter) that looks up a row's last tokens in the texts of the other rows
    of its group and drafts what followed them there, merged into one graph.

    A group consists of the rows of one batch whose prompts are equal, token for token; it is derived from the
    contexts, so requests do not name it. A row that is alone in its group drafts nothing. The text of a row
    serves the others even after it has ended; with the last row of the group all of it is dropped, and no
    text of another group is ever searched.

    `tree`: draft the `nodes` most probable nodes in place of one path.
    """

    want = Want()
    claims: tuple[type[Claim], ...] = ()
    learns_across_rows = drafts_across_rows = True

    def __init__(
        self,
        max_ngram: int = 4,
        min_ngram: int = 2,
        *,
        min_share: float = 0.3,  # least share of a draft token in the weight of its parent's continuations
        tree: bool = False,
        nodes: int = 16,
        max_matches: int = 32,  # maximum number of occurrences whose continuations are merged
    ) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"min_ngram is {min_ngram} and max_ngram {max_ngram}; give 1 <= min_ngram <= max_ngram tokens"
            )
        if not 0 <= min_share <= 1:
            raise ValueError(f"min_share is {min_share}; give a share between 0 and 1")
        if nodes < 1 or max_matches < 1:
            raise ValueError(f"nodes is {nodes} and max_matches {max_matches}; keep at least one of each")
        self._max_ngram, self._min_ngram, self._min_share = max_ngram, min_ngram, min_share
        self._tree, self._nodes, self._max_matches = tree, nodes, max_matches
        self._rows: dict[int, tuple[bytes, int]] = {}  # slot -> prompt, index of the sample in its group
        self._groups: dict[bytes, SampleGroup] = {}  # prompt -> group

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self._join(ctx)
        found: list[CandidateTree] = []
        for row, slot in enumerate(ctx.slots):
            if slot not in self._rows:
                found.append(NO_CANDIDATES)  # its prompt is being read
                continue
            prompt, member = self._rows[slot]
            group, depth, stop = self._groups[prompt], plan.depth[row], ctx.sampling[row].stop
            graph = ContinuationGraph(())
            if depth > 0:
                last = ctx.tokens[row][-self._max_ngram :].tolist()
                graph = ContinuationGraph(group.matches(member, last, self._max_matches))
            if self._tree:
                found.append(graph.branches(depth, self._nodes, self._min_share, stop))
            else:
                found.append(chain(graph.path(depth, self._min_share), 0, stop))
        return Draft(candidate_tree(ctx.roots, found))

    def observe(self, step: Step) -> None:
        logits, forest = step.scores.logits, step.draft.tree.forest
        if logits is None:
            return
        in_groups = [
            (row, *self._rows[slot])
            for row, slot in enumerate(step.ctx.slots)
            if slot in self._rows and step.generated[row]
        ]
        in_groups = [each for each in in_groups if len(self._groups[each[1]].texts) > 1]
        if not in_groups:
            return
        at = [node - step.scores.first for row, _, _ in in_groups for node in forest.path(step.kept[row])]
        tokens = [token for row, _, _ in in_groups for token in step.generated[row]]
        after = logits[torch.tensor(at, device=logits.device)].float()
        own = after.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
        pairs = iter(zip(tokens, (own - after.logsumexp(-1)).exp().tolist(), strict=True))
        for row, prompt, member in in_groups:
            self._groups[prompt].extend(member, islice(pairs, len(step.generated[row])))

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot in self._rows:
                prompt, _ = self._rows.pop(slot)
                group = self._groups[prompt]
                group.open -= 1
                if not group.open:
                    del self._groups[prompt]

    def _join(self, ctx: Context) -> None:
        """Add rows that are new to the groups of their prompts."""
        for row, slot in enumerate(ctx.slots):
            if slot not in self._rows and ctx.committed[row] >= ctx.prompt_lengths[row]:
                given = ctx.tokens[row][: ctx.prompt_lengths[row]]
                prompt = given.numpy().tobytes()
                group = self._groups.get(prompt)
                if group is None:
                    group = self._groups[prompt] = SampleGroup(
                        given[-self._max_ngram :].tolist(), self._min_ngram
                    )
                self._rows[slot] = prompt, group.join()


class SampleGroup:
    """The texts that the samples of one prompt generated, with a hash map from n-grams of `min_ngram` tokens
    to their occurrences."""

    def __init__(self, before: Sequence[int], min_ngram: int) -> None:
        self.open = 0  # number of samples that have not ended
        self.texts: list[list[int]] = []  # per sample: the last prompt tokens, then the generated tokens
        self._before, self._min_ngram = list(before), min_ngram
        self._probs: list[list[float]] = []  # the target's probability of each token; 0 in the prompt
        # n-gram -> its occurrences: (index of the sample, index of the token after the n-gram)
        self._ends: dict[tuple[int, ...], list[tuple[int, int]]] = {}

    def join(self) -> int:
        """Register one more sample of the prompt, with no generated tokens yet; returns its index."""
        self.open += 1
        self.texts.append(list(self._before))
        self._probs.append([0.0] * len(self._before))
        return len(self.texts) - 1

    def extend(self, member: int, tokens_with_probs: Iterator[tuple[int, float]]) -> None:
        """Append the tokens that a sample generated, each with the target's probability of it."""
        text, probs, size = self.texts[member], self._probs[member], self._min_ngram
        for token, prob in tokens_with_probs:
            if len(text) >= size:
                self._ends.setdefault(tuple(text[-size:]), []).append((member, len(text)))
            text.append(token)
            probs.append(prob)

    def matches(self, member: int, last: Sequence[int], max_matches: int) -> list[Occurrence]:
        """Occurrences of the last tokens in the other samples' texts, at most `max_matches`: those with the
        longest matches, of equally long ones the newest first.

        Only the newest `SCANNED * max_matches` occurrences are examined.
        """
        size, found = self._min_ngram, list[Occurrence]()
        for other, end in islice(reversed(self._ends.get(tuple(last[-size:]), ())), SCANNED * max_matches):
            if other != member:
                text, length = self.texts[other], size
                while length < min(len(last), end) and text[end - 1 - length] == last[-1 - length]:
                    length += 1
                found.append((length, text, self._probs[other], end))
        found.sort(key=lambda match: -match[0])
        return found[:max_matches]


# match length, text, probabilities of its tokens, index of the token after the match
Occurrence = tuple[int, list[int], list[float], int]
Node = tuple[int, int]  # distance from the match in tokens, token id
ROOT: Node = (0, -1)


class ContinuationGraph:
    """A weighted graph of the continuations of several matches: equal tokens at an equal distance from the
    match are one node.

    The weight of an edge is the sum, over the matches that contain it, of the match length times the target's
    probability of the token when it was generated.
    """

    def __init__(self, matches: Sequence[Occurrence]) -> None:
        self._matches = matches
        self._edges: dict[Node, list[tuple[float, int]]] = {}

    def shares_below(self, node: Node) -> list[tuple[float, int]]:
        """(share, token) of every edge below a node, in descending order of share, then ascending order of
        token. The share is the edge's weight divided by the total weight of the node's edges."""
        if node not in self._edges:
            distance, token = node
            weights: dict[int, float] = {}
            for length, text, probs, end in self._matches:
                at = end + distance
                if at < len(text) and (distance == 0 or text[at - 1] == token):
                    weights[text[at]] = weights.get(text[at], 0.0) + length * probs[at]
            total = sum(weights.values())
            shares = [(weight / total, following) for following, weight in weights.items()] if total else []
            self._edges[node] = sorted(shares, key=lambda edge: (-edge[0], edge[1]))
        return self._edges[node]

    def path(self, depth: int, threshold: float) -> list[int]:
        """Tokens of the path that follows each node's edge of largest weight. It ends after `depth` tokens,
        or where that edge has less than `threshold` of the total weight of the node's edges."""
        tokens, node = list[int](), ROOT
        while len(tokens) < depth and (edges := self.shares_below(node)) and edges[0][0] >= threshold:
            tokens.append(edges[0][1])
            node = (len(tokens), tokens[-1])
        return tokens

    def branches(self, depth: int, nodes: int, threshold: float, stop: Sequence[int]) -> CandidateTree:
        """Draft tree of at most `nodes` nodes: those with the largest product of edge shares on their path.

        An edge's share is its weight divided by the total weight of its node's edges; edges with a share
        below `threshold` are left out. No node is below a stop token or deeper than `depth`.
        """
        tokens, parents, weights, heap = (
            list[int](),
            list[int](),
            list[float](),
            list[tuple[float, int, int, Node]](),
        )
        node, above, path_share = ROOT, -1, 1.0
        while True:
            if node[0] < depth and node[1] not in stop:
                for share, token in self.shares_below(node):
                    if share >= threshold:
                        heappush(heap, (-path_share * share, len(tokens), above, (node[0] + 1, token)))
            if not heap or len(tokens) == nodes:
                return CandidateTree(tokens, parents, weights, 0) if tokens else NO_CANDIDATES
            path_share, _, parent, node = heappop(heap)
            path_share, above = -path_share, len(tokens)
            tokens.append(node[1])
            parents.append(parent)
            weights.append(path_share)
