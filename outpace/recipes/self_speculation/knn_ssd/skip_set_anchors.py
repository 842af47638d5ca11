"""Which sub-layers of a target to skip for prompts of which kind: anchors in the space of hidden states.

Letters: C anchors, S skip sets (one per domain), L layers, D hidden size, N prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outpace.indexes.store import Arrays, in_range, require, typed
from outpace.models.skip_set import SkipSet

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
ANCHORS = 10  # most anchors of a domain
PROMPTS = 4  # prompts of a domain for each anchor, at least
ROUNDS = 20  # of k-means
FAR = 1.5  # a prompt is of no domain beyond this multiple of the largest distance in the domain


class SkipSetAnchors:
    """Anchors, the k-means centers of the mean hidden states of prompts, each with the skip set of its
    domain (Song et al. 2025, KNN-SSD). Distances are those of cosines."""

    kind = "skip-sets"
    max_token = -1  # no tokens are drafted from it

    def __init__(self, centers: Floats, domains: Ints, reach: Floats, skipped: Ints) -> None:
        self.centers = centers  # (C, D) unit vectors
        self.domains = domains  # (C,) index of the domain of each anchor
        self.reach = reach  # (S,) largest distance of a new prompt of the domain to its nearest anchor
        self.skipped = skipped  # (S, 2, L) 1 for sub-layers that are skipped: attention, MLP

    @classmethod
    def build(cls, vectors: Sequence[ArrayLike], sets: Sequence[SkipSet], num_layers: int) -> Self:
        """Of each domain the mean hidden states (N, D) of its prompts, and its skip set. ValueError for a
        domain without prompts and for sets that the model cannot skip."""
        centers, reach, domains = list[Floats](), list[float](), list[int]()
        skipped = np.zeros((len(sets), 2, num_layers), np.int32)
        for index, (states, skip_set) in enumerate(zip(vectors, sets, strict=True)):
            skip_set.check(num_layers)
            units = unit(np.asarray(states, np.float32))
            if not len(units):
                raise ValueError(f"domain {index} has no prompts: give texts for each")
            centers.append(_anchors(units))
            reach.append(_reach(units))
            domains += [index] * len(centers[-1])
            for side, layers in enumerate((skip_set.attention, skip_set.mlp)):
                skipped[index, side, sorted(layers)] = 1
        return cls(np.concatenate(centers), np.array(domains, np.int32), np.array(reach, np.float32), skipped)

    @property
    def num_layers(self) -> int:
        return self.skipped.shape[2]

    def domain(self, state: ArrayLike) -> int | None:  # (D,)
        """The domain of the anchor nearest to a prompt's mean hidden state; None if it is far from all."""
        distance = 1 - self.centers @ unit(np.asarray(state, np.float32)[None])[0]
        nearest = int(distance.argmin())
        domain = int(self.domains[nearest])
        # anchors of few prompts have a reach of nearly 0: rounding is no distance
        return domain if distance[nearest] <= max(FAR * self.reach[domain], 1e-5) else None

    def skip_set(self, domain: int) -> SkipSet:
        attention, mlp = (frozenset(np.flatnonzero(side).tolist()) for side in self.skipped[domain])
        return SkipSet(attention, mlp)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "centers": self.centers,
            "domains": self.domains,
            "reach": self.reach,
            "skipped": self.skipped,
        }

    @property
    def metadata(self) -> dict[str, int]:
        return {"domains": len(self.skipped), "anchors": len(self.centers), "layers": self.num_layers}

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays.values())

    @classmethod
    def from_arrays(cls, arrays: Arrays, metadata: Mapping[str, int]) -> Self:
        centers, reach = typed(arrays, np.float32, centers=(None, None), reach=(None,))
        (domains,) = typed(arrays, domains=(len(centers),))
        (skipped,) = typed(arrays, skipped=(len(reach), 2, None))
        if not len(centers):
            raise ValueError("it has no anchors: build it again with `outpace index build`")
        require(
            centers.size > 0 and skipped.size > 0,
            in_range(centers, -1.001, 1.001),  # unit vectors, up to rounding
            in_range(reach, -0.001, 2.001),
            in_range(domains, 0, len(reach)),
            in_range(skipped, 0, 2),
            bool((skipped.sum((1, 2)) < 2 * skipped.shape[2]).all()),  # something is left of the model
        )
        return cls(centers, domains, reach, skipped)


def unit(states: Floats) -> Floats:  # (N, D)
    """The states scaled to length 1."""
    return states / np.maximum(np.linalg.norm(states, axis=-1, keepdims=True), 1e-12)


def _anchors(units: Floats) -> Floats:  # (N, D) -> (C, D)
    """The k-means centers of a domain's prompts, one for `PROMPTS` of them and at most `ANCHORS`."""
    return _clustered(units, min(ANCHORS, max(1, len(units) // PROMPTS)))


def _reach(units: Floats) -> float:  # (N, D)
    """The largest distance of a prompt of the domain to its nearest anchor of the other half of the prompts:
    to anchors that a prompt helped to make it is nearer than a new prompt is."""
    halves = [units[::2], units[1::2]]
    if len(units) < 2 * PROMPTS:
        halves = [units, units]
    pairs = zip(halves, reversed(halves), strict=True)
    return max(float((1 - half @ _anchors(other).T).min(1).max()) for half, other in pairs)


def _clustered(units: Floats, count: int) -> Floats:  # (N, D) -> (count, D)
    """Spherical k-means. The first centers are prompts far from one another, so the result is repeatable."""
    mean = unit(units.mean(0, keepdims=True))
    centers = units[[int((units @ mean[0]).argmax())]]
    while len(centers) < count:
        centers = np.concatenate((centers, units[[int((units @ centers.T).max(1).argmin())]]))
    for _ in range(ROUNDS):
        nearest = (units @ centers.T).argmax(1)
        means = [
            units[nearest == index].mean(0) if (nearest == index).any() else center
            for index, center in enumerate(centers)
        ]
        centers = unit(np.stack(means))
    return centers
