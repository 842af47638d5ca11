"""Drafters of mutants around untrained heads without a KV cache. One claims that tokens were drawn that it
chose as the most probable ones; the other drafts by beam search, for the mutant verifier `PerPath`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from outpace.core.contracts import Drafter
from outpace.core.grower import Grower
from outpace.core.noise import Noise
from outpace.drafters.model.best_paths import best_paths
from outpace.drafters.model.grow import grow
from outpace.drafters.model.position_drafter import PositionDrafter
from outpace.models.heads.medusa.head import untrained_medusa
from outpace.models.heads.redrafter.head import untrained_redrafter
from outpace.models.table import TableTarget
from outpace.proof.mutants.drafters import MostProbable


def ranks_claimed(target: TableTarget) -> Drafter:
    """Mutant: drafts the most probable tokens of Medusa's heads, recorded as drawn from them."""
    return PositionDrafter(untrained_medusa(target), partial(grow, children=_ranked), sampled=True)


def _ranked(grower: Grower, at: Sequence[int], widths: Sequence[int], q: Tensor, noise: Noise) -> list[int]:
    return grower.add_drawn(at, q, widths, MostProbable())


def beams(target: TableTarget) -> Drafter:
    """The correct drafter of ReDrafter, with two paths of two tokens. Its published verification, which tests
    the paths separately and keeps the longest, changes the output distribution."""
    growth = partial(best_paths, branching=(2, 2), num_paths=2, width=2)
    return PositionDrafter(untrained_redrafter(target), growth, sampled=False)
