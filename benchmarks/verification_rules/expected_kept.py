"""Expected acceptance length of a given draft tree, by enumeration of the verifier's random choices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.core.contracts import Scores, TargetProbs, Verifier
from outpace.core.noise import Key
from outpace.core.tree import TokenTree
from outpace.proof.enumerated_noise import Branch, EnumeratedNoise

FEW = 64  # maximum number of tokens enumerated singly; with more, all tokens not drafted are one option


@dataclass(frozen=True, slots=True)
class ExpectedAcceptance:
    """Expected acceptance of one tree, the bonus token not counted."""

    depth: float  # expected number of accepted draft tokens
    any: float  # probability that at least one is accepted


class DraftNoise(EnumeratedNoise):
    """Enumerated noise for one row's tree. A choice among more than `FEW` tokens has one option per drafted
    child, and a single one for all other tokens, which end the step alike."""

    def __init__(self, tree: TokenTree, branch: Branch) -> None:
        super().__init__([branch], [0], [0])
        self._following = _following(tree)

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        if probs.shape[-1] <= FEW:
            return super().choose(probs, key)
        picked = []
        for distribution, node, (branch, name) in zip(probs, key.nodes, self._names(key), strict=True):
            drafted = self._following[node]
            inside = distribution[drafted]
            outside = distribution.clone()
            outside[drafted] = 0
            option = branch.pick(name, [*inside.tolist(), max(0.0, float(outside.sum()))])
            picked.append(drafted[option] if option < len(drafted) else int(outside.argmax()))
        return torch.tensor(picked, dtype=torch.int64)


def expected_acceptance(
    verifier: Verifier, tree: TokenTree, target_probs: TargetProbs, scores: Scores
) -> ExpectedAcceptance:
    """Expected acceptance of a one-row tree under this verifier, over all outcomes of its random choices."""
    pending, depth, any_ = [Branch((), 0)], 0.0, 0.0
    while pending:
        branch = pending.pop()
        verdict = verifier.verify(tree, target_probs, scores, DraftNoise(tree, branch))
        num_accepted = tree.forest.depths[verdict.leaf[0]]
        depth += branch.probability * num_accepted
        any_ += branch.probability * (num_accepted > 0)
        pending += [Branch(script, 0) for script in branch.left_open]
    return ExpectedAcceptance(depth, any_)


def expected_acceptance_of_matching(tree: TokenTree, target_probs: TargetProbs) -> ExpectedAcceptance:
    """Expected acceptance of a one-row tree under match verification, in closed form: a node is accepted with
    the target's probability of its path."""
    tokens, children = tree.token_list(), tree.forest.children
    depth, any_, levels = 0.0, 0.0, [([0], 1.0)]
    while levels:
        level, path_prob = levels.pop()
        below = [child for node in level for child in children[node]]
        if not below:
            continue
        p = target_probs.probs([level[0]])[0]
        for token in dict.fromkeys(tokens[child] for child in below):
            accepted_prob = path_prob * float(p[token])
            depth += accepted_prob
            any_ += accepted_prob * (level == [0])
            levels.append(([child for child in below if tokens[child] == token], accepted_prob))
    return ExpectedAcceptance(depth, any_)


def _following(tree: TokenTree) -> list[list[int]]:
    """Per node the distinct tokens of its children and of the children of nodes with an equal path."""
    tokens, forest = tree.token_list(), tree.forest
    paths = [tuple(tokens[node] for node in forest.path(leaf)) for leaf in range(len(tree))]
    found: dict[tuple[int, ...], dict[int, None]] = {}
    for node in range(1, len(tree)):
        found.setdefault(paths[forest.parents[node]], {})[tokens[node]] = None
    return [list(found.get(text, ())) for text in paths]
