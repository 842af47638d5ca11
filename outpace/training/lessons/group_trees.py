"""Group tree optimization (Hu et al. 2025): a head learns from how much of its draft trees is accepted.

Letters: R texts, C columns (see training.lessons.lesson), P trees, S tokens of the longest accepted path.
"""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn

from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.models.heads.draft_head import DraftHead
from outpace.models.hf.target import HFTarget
from outpace.training.config import GroupTrees, Head
from outpace.training.features import Batch
from outpace.training.lessons.feature_heads import FeatureHeadLesson, Objective, features_of
from outpace.training.lessons.lesson import following
from outpace.training.text_trees import drafted_trees, scored_trees
from outpace.training.unrolled import unrolled

LEAST_DEVIATION = 1e-6  # added to the standard deviation of a group's rewards


class GroupTreeLesson(FeatureHeadLesson):
    """The loss of an objective plus one of draft trees.

    The head and the frozen head that it began as draft a tree at each place of a group of adjacent ones. The
    difference of the two rewards, in units of the group's standard deviation, says how good the head's tree
    is. The path of it that the target accepts becomes more probable where the tree is better than the
    group's others, and less where it is worse: trees and rewards have no gradient, only the logarithm of the
    path's draft probability has.

    Not stated in the paper is which path of a tree counts as accepted: here it is that of a step at
    temperature 0."""

    def __init__(
        self,
        head: DraftHead,
        target_head: nn.Module,
        objective: Objective,
        settings: Head,
        target: HFTarget,
        trees: GroupTrees,
    ) -> None:
        super().__init__(head, target_head, objective, settings)
        # in tuples, so that they are no submodules: they are neither trained nor saved
        self._scoring, self._reference = (target,), (_frozen(head),)
        self._trees = trees
        self._growth = partial(dynamic_tree, width=trees.width, num_nodes=trees.num_nodes)
        # (V,) index of each token in the draft vocabulary
        self._places: Tensor | None = None
        if head.draft_ids is not None:
            self._places = torch.zeros(target.vocab, dtype=torch.int64)
            self._places[head.draft_ids.cpu()] = torch.arange(len(head.draft_ids))

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        of_tokens = super().forward(batch, noise)
        groups = [self._groups(columns, noise) for columns in following(batch.learns, 2).cpu()]
        if not any(groups):
            return of_tokens
        return of_tokens + self._trees.weight * self.tree_loss(batch, groups)

    def tree_loss(self, batch: Batch, groups: list[list[list[int]]]) -> Tensor:
        """The loss of trees at columns, by text and group; both are in increasing order."""
        advantages, paths = self.advantages(batch, groups)
        columns = torch.zeros_like(batch.learns[:, 1:])
        for row, of_row in enumerate(groups):
            columns[row, [column for group in of_row for column in group]] = True
        own = self.path_log_probs(self.head, batch, columns, paths)
        with torch.no_grad():
            before = self.path_log_probs(self._reference[0], batch, columns, paths)
        lengths = torch.tensor([max(1, len(path)) for path in paths]).to(own)
        advantages = advantages.to(own)
        ratio = ((own - before) / lengths).exp()
        clipped = ratio.clamp(1 - self._trees.clip, 1 + self._trees.clip)
        return -torch.minimum(ratio * advantages, clipped * advantages).mean()

    @torch.no_grad()
    def advantages(
        self, batch: Batch, groups: list[list[list[int]]]
    ) -> tuple[Tensor, list[list[int]]]:  # (P,)
        """How much better the head's trees are than those of the head that it began as, relative to the
        others of their groups, and the tokens of each tree that are accepted."""
        target, found, paths = self._scoring[0], list[Tensor](), list[list[int]]()
        heads = [(head, features_of(head, batch)) for head in (self.head, self._reference[0])]
        for row, of_row in enumerate(groups):
            tokens = batch.tokens[row][batch.is_token[row]].cpu()
            cache = target.open(1, len(tokens) + 2 * self._trees.size * (1 + self._trees.num_nodes))
            for columns in of_row:
                text = target, cache, tokens
                trees = [
                    drafted_trees(
                        head,
                        *text,
                        features[row, : len(tokens) - 1],
                        columns,
                        self._growth,
                        self._trees.depth,
                    )
                    for head, features in heads
                ]
                now, before = scored_trees(*text, columns, trees)
                gains = now.rewards() - before.rewards()
                found.append((gains - gains.mean()) / (gains.std() + LEAST_DEVIATION))
                paths += now.accepted()
        return torch.cat(found), paths

    def path_log_probs(
        self, head: DraftHead, batch: Batch, columns: Tensor, paths: list[list[int]]
    ) -> Tensor:  # (R, C), (P,) -> (P,)
        """The logarithms of a head's draft probabilities of paths that begin at the P columns."""
        device, num_steps = columns.device, max(1, *map(len, paths))
        padded = torch.tensor([path + [0] * (num_steps - len(path)) for path in paths], device=device)
        read = torch.zeros(*columns.shape, num_steps, dtype=torch.int64, device=device)
        read[columns] = padded
        labels = padded if self._places is None else self._places.to(device)[padded]
        lengths = torch.tensor(list(map(len, paths)), device=device)
        total = torch.zeros(len(paths), device=device)
        for outputs in unrolled(
            head, batch.tokens, features_of(head, batch), columns, num_steps, paths=read[..., :-1]
        ):
            log_q = head.lm_head(head.norm(outputs.states)).float().log_softmax(-1)
            chosen = log_q.gather(1, labels[:, outputs.step, None])[:, 0]
            total = total + torch.where(outputs.step < lengths, chosen, 0.0)
        return total

    def _groups(self, columns: Tensor, noise: torch.Generator) -> list[list[int]]:  # (C,) bool
        """Random groups of adjacent columns of a text, of which no two have a column in common."""
        size, limit = self._trees.size, self._scoring[0].max_length
        found = columns.nonzero()[:, 0].tolist()
        if limit is not None:  # trees deeper than the positions of the models are not drafted
            found = [column for column in found if column + 2 + self._trees.depth <= limit]
        count = min(self._trees.groups, len(found) // size)
        if not count:
            return []
        # places of the groups if each had one column
        places = torch.randperm(len(found) - count * (size - 1), generator=noise)[:count].sort()[0].tolist()
        begins = [place + index * (size - 1) for index, place in enumerate(places)]
        return [found[begin : begin + size] for begin in begins]


def _frozen(head: DraftHead) -> DraftHead:
    """A copy of a head that stays as it is. It shares with the head what both have of the target."""
    shared = [head.get_submodule(name.removesuffix(".")) for name in head.from_target]
    made = copy.deepcopy(head, {id(module): module for module in shared})
    for parameter in made.own.values():
        parameter.requires_grad_(False)
    return made
