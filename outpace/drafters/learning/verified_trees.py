"""What a head learns from verified draft trees: the target's distributions on the accepted path and on the
branches that were rejected.

Letters: T tokens, C = T - 1 columns (see models.heads.text_reader), P learned columns, N nodes, K draft
vocabulary, V tokens of the target, H outputs of all layers that the head reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
from torch import Tensor

from outpace.core.contracts import Step
from outpace.drafters.learning.online_adam import Weights
from outpace.drafters.learning.target_labels import Divergence, target_label
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.learning_head import HeadNetwork, LearningHead
from outpace.models.heads.text_reader import TextReader
from outpace.sampling.divergence import cross_entropy

CONTEXT = 256  # most tokens of a text that are read before the first one to learn


@dataclass(frozen=True)
class Objective:
    """What is minimised."""

    divergence: Divergence
    discarded: float  # weight of positions on rejected branches; with 0 they are not noted
    labels: float  # weight of the cross entropy of the next token of the text


@dataclass(frozen=True)
class _Node:
    """A position to learn: a committed token that the head reads with the target's feature (depth 0), or a
    draft token that it reads with its own output, as in drafting."""

    token: int
    depth: int
    above: int  # place of the node above it in the list of nodes; of a committed token its column
    label: int  # place of the target's distribution after it
    accepted: bool
    following: int  # place in the draft vocabulary of the token after it in the text; -1: it has none


@dataclass(frozen=True, eq=False)
class VerifiedTrees:
    """Implementation of drafters.learning.online_learning.Lesson: the end of a text, and its draft trees."""

    network: HeadNetwork
    objective: Objective
    tokens: Tensor  # (T,) int64
    hidden: Tensor  # (C, H)
    nodes: Sequence[_Node]  # (N,) in increasing depth
    log_p: Tensor  # (L, K) the target's distributions
    can_draft: Tensor  # (L,) bool: whether its most probable token is in the draft vocabulary

    @property
    def num_positions(self) -> int:
        return len(self.nodes)

    def loss(self, weights: Weights) -> Tensor:
        logits, nodes, objective = self.network.run(weights, self._logits), self.nodes, self.objective
        label, following = (
            torch.tensor(each, device=logits.device)
            for each in ([node.label for node in nodes], [node.following for node in nodes])
        )
        is_accepted = torch.tensor([node.accepted for node in nodes], device=logits.device)
        log_p, learned = self.log_p[label], self.can_draft[label]
        accepted, rejected, known = learned & is_accepted, learned & ~is_accepted, following >= 0
        return (
            accepted.sum() * objective.divergence(logits, log_p, accepted)
            + objective.discarded * (rejected.sum() * objective.divergence(logits, log_p, rejected))
            + objective.labels * (known.sum() * cross_entropy(logits, following, known))
        )

    def _logits(self, head: DraftHead) -> Tensor:  # -> (N, K)
        """The head's logits after all nodes: one forward over the text, and one over each level of all trees
        together."""
        features = head.fuse(self.hidden.to(next(head.layers.parameters()).dtype))
        levels = [list(nodes) for _, nodes in groupby(self.nodes, lambda node: node.depth)]
        reader = TextReader(head, self.tokens, features, [node.above for node in levels[0]])
        for level in levels[1:]:
            reader.read(torch.tensor([node.token for node in level]), [node.above for node in level])
        return head.lm_head(head.norm(reader.outputs))


@dataclass(slots=True)
class _Text:
    """The end of a text, from some token on, and what is to be learned of it."""

    begin: int  # index of the first token
    tokens: list[int] = field(default_factory=list[int])
    hidden: list[Tensor] = field(default_factory=list[Tensor])  # (H,) of each token
    nodes: list[_Node] = field(default_factory=list[_Node])  # as they were noted
    log_p: list[Tensor] = field(default_factory=list[Tensor])  # (K,) each
    can_draft: list[bool] = field(default_factory=list[bool])

    def cut(self) -> None:
        """Keep the tokens that the next lesson may read before its first column."""
        self.begin += max(0, len(self.tokens) - CONTEXT)
        self.tokens, self.hidden = self.tokens[-CONTEXT:], self.hidden[-CONTEXT:]


class TreeNotes:
    """Implementation of drafters.learning.online_learning.Lessons: notes of every step the target's hidden
    states at the committed tokens and its distributions at all nodes of the draft tree.

    The nodes of the accepted path count as accepted, also the last, after which the token is the target's
    own; each of them is learned as committed text, too, with the target's feature. All others are rejected
    branches. Of a draft in which the text ends only the path up to its end is learned."""

    def __init__(self, model: LearningHead, objective: Objective) -> None:
        self._model, self._objective = model, objective
        self._texts: dict[int, _Text] = {}  # by slot
        ids = model.opened.head.draft_ids
        # token -> its place in the draft vocabulary; None: that is the token itself
        self._places = None if ids is None else {token: place for place, token in enumerate(ids.tolist())}

    def note(self, step: Step, row: int) -> int:
        slot, tree, forest = step.ctx.slots[row], step.draft.tree, step.draft.tree.forest
        path, generated, first = forest.path(step.kept[row]), step.generated[row], step.scores.first
        tokens, committed = tree.token_list(), step.ctx.committed[row]
        text = self._texts.get(slot)
        if text is None or text.begin + len(text.tokens) != committed - 1:
            text = self._texts[slot] = _Text(committed - 1)
        at = [node - first for node in path]
        layers = [step.scores.hidden[layer][at] for layer in self._model.opened.head.taps]
        place, before = len(text.tokens), len(text.nodes)
        text.tokens += [tokens[node] for node in path]
        text.hidden += torch.cat(layers, -1).unbind()
        if not generated:
            if not text.nodes:
                text.cut()
            return 0
        labels = {node: self._label(text, step, row, node) for node in path}
        following = dict(zip(path, map(self._place, generated), strict=True))
        for index, node in enumerate(path, place):
            if index:  # the head does not read a text's first token
                text.nodes.append(_Node(tokens[node], 0, index - 1, labels[node], True, following[node]))
        if not place:
            return len(text.nodes) - before
        places = {path[0]: before}
        for node in self.drafted(step, row, path):
            if node not in labels:
                labels[node] = self._label(text, step, row, node)
            places[node] = len(text.nodes)
            above, accepted = places[forest.parents[node]], node in following
            rest = labels[node], accepted, following.get(node, -1)
            text.nodes.append(_Node(tokens[node], forest.depths[node], above, *rest))
        return len(text.nodes) - before

    def _place(self, token: int) -> int:
        return token if self._places is None else self._places.get(token, -1)

    def _label(self, text: _Text, step: Step, row: int, node: int) -> int:
        """Note the target's distribution after a node; returns its place."""
        assert step.scores.logits is not None
        logits, ids = step.scores.logits[node - step.scores.first], self._model.opened.head.draft_ids
        can_draft = True
        if ids is not None:
            can_draft = int(logits.argmax()) in (self._places or {})
            logits = logits[ids.to(logits.device)]
        text.log_p.append(self.label(step, row, logits))
        text.can_draft.append(can_draft)
        return len(text.log_p) - 1

    def drafted(self, step: Step, row: int, path: Sequence[int]) -> Sequence[int]:
        """The draft nodes to learn; `path`: the root and the nodes that are kept."""
        is_whole = path[-1] == step.verdict.leaf[row] and self._objective.discarded > 0
        return (step.draft.tree.forest.nodes[row] if is_whole else path)[1:]

    def label(self, step: Step, row: int, logits: Tensor) -> Tensor:  # (K,) -> (K,)
        """What is learned at a node of a row, from the target's logits there over the draft vocabulary."""
        return target_label(logits.clone())

    def take(self, slot: int) -> VerifiedTrees | None:
        text = self._texts.get(slot)
        if text is None or not text.nodes:
            return None
        order = sorted(range(len(text.nodes)), key=lambda place: text.nodes[place].depth)
        new = {place: index for index, place in enumerate(order)}
        begin = max(0, min(node.above for node in text.nodes if not node.depth) + 1 - CONTEXT)
        nodes = [
            replace(node, above=new[node.above] if node.depth else node.above - begin)
            for node in (text.nodes[place] for place in order)
        ]
        lesson = VerifiedTrees(
            self._model.network,
            self._objective,
            torch.tensor(text.tokens[begin:]),
            torch.stack(text.hidden[begin:-1]),
            nodes,
            torch.stack(text.log_p),
            torch.tensor(text.can_draft, device=text.log_p[0].device),
        )
        text.nodes, text.log_p, text.can_draft = [], [], []
        text.cut()
        return lesson

    def forget(self, slot: int) -> None:
        self._texts.pop(slot, None)
