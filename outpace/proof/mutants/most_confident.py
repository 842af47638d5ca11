"""Mutant of a choice among draft trees: the trees were drawn, and the chosen one keeps its claim."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Drafter, Parts
from outpace.drafters.compose.union import UnionDrafter
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.head_model import HeadModel
from outpace.models.table import TableTarget
from outpace.recipes.control.taps import MostConfident
from outpace.verifiers.rejection import Rejection


class ChosenByDraws(MostConfident):
    """Mutant: keeps the tree whose drawn tokens have the largest draft probabilities, with its q. As the kept
    tree depends on its tokens, q is not their distribution."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        UnionDrafter.__init__(self, drafters)


def confident_of_draws(target: TableTarget) -> Parts:
    """Two heads that draw chains, of which one is kept."""
    growth = partial(grow, record_probs=True)
    drafters = [
        FeatureDrafter(HeadModel(untrained_eagle(target, seed)), target.vocab, growth, sampled=True)
        for seed in range(2)
    ]
    return Parts(target, ChosenByDraws(drafters), Rejection(), Fixed(2))
