"""Mutants of rejection that are wrong only in deep drafts, with large vocabularies or in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Scores, TargetProbs, Verdict
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.proof.models import Models
from outpace.verifiers.rejection import Rejection

DEEP = 8  # length of the drafted chains


class AcceptsAll(Rejection):
    """Mutant: accepts all of a chain below its last accepted node if `wrong(depth of that node,
    target_probs)`."""

    def __init__(self, wrong: Callable[[int, TargetProbs], bool]) -> None:
        super().__init__()
        self._wrong = wrong

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict, forest = super().verify(tree, target_probs, scores, noise), tree.forest
        leaves, bonus = list(verdict.leaf), list(verdict.bonus)
        for row, leaf in enumerate(leaves):
            if forest.children[leaf] and self._wrong(forest.depths[leaf], target_probs):
                while forest.children[leaf]:
                    leaf = forest.children[leaf][0]
                leaves[row], bonus[row] = leaf, target_probs.choose([leaf], noise)[0]
        return Verdict(leaves, bonus)


def deep_faults(models: Models) -> Iterator[tuple[str, Callable[[], Parts]]]:
    """(name, function that returns the parts) of mutants that are wrong from some depth on."""
    for depth in (3, 4, 6):
        yield (
            f"everything accepted from depth {depth} on",
            lambda depth=depth: _parts(models, lambda above, probs: above + 1 >= depth),
        )


def wide_faults(models: Models) -> Iterator[tuple[str, Callable[[], Parts]]]:
    """(name, function that returns the parts) of mutants wrong with more than 16 tokens or in float32."""
    yield (
        "everything accepted in vocabularies over 16",
        lambda: _parts(models, lambda above, probs: probs.probs([0]).shape[-1] > 16),
    )
    yield (
        "everything accepted in float32",
        lambda: _parts(models, lambda above, probs: probs.probs([0]).dtype == torch.float32),
    )


def _parts(models: Models, wrong: Callable[[int, TargetProbs], bool]) -> Parts:
    return Parts(models.target, DraftModel(models.drafts[0]), AcceptsAll(wrong), Fixed(DEEP))
