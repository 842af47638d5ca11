"""Computes the updates of a drafter that learns."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import Protocol

from torch import Tensor

from outpace.drafters.learning.online_adam import OnlineAdam, Weights

KEPT = 4  # times the positions of an update that are kept of earlier ones, to be learned again


class Lesson(Protocol):
    """Positions of one text that are learned together, with all that their loss needs."""

    @property
    def num_positions(self) -> int: ...

    def loss(self, weights: Weights) -> Tensor:
        """The sum of the losses at the positions, of the model with these weights."""
        ...


class Trainer(Protocol):
    """Where the updates of a drafter's weights are computed: here, or in another process."""

    @property
    def is_busy(self) -> bool:
        """Whether an update has not ended, so that `learn` and `restart` may not be called."""
        ...

    def learn(self, lessons: Sequence[Lesson]) -> None:
        """Begin an update."""
        ...

    def poll(self) -> Weights | None:
        """The weights of an update that has ended since this was called last; None if there are none."""
        ...

    def restart(self, weights: Weights) -> None:
        """Go on from these weights, in place of those of the last update."""
        ...


class LocalTrainer:
    """Implementation of Trainer that computes an update in `learn`: the mean of the loss over all positions,
    with one backward pass for each lesson. For each of them `replay` lessons of earlier updates, drawn at
    random, are learned again, so that a new kind of text does not take the place of all others.

    An update that is not finite is left out; so is one that fails, such as for lack of memory, and then none
    follows. Both warn once. Memory besides that of `OnlineAdam`: lessons of at most KEPT * `positions`
    positions."""

    is_busy = False

    def __init__(self, weights: Weights, rate: float, *, positions: int, replay: float) -> None:
        """ValueError unless there is at least one position and `replay` is not negative."""
        if positions < 1 or replay < 0:
            raise ValueError(
                f"positions is {positions} and replay {replay}: give at least one position and a share of 0 "
                "or more"
            )
        self._rate, self._positions, self._replay = rate, positions, replay
        self._kept, self._random = deque[Lesson](), Random(0)
        self._adam = OnlineAdam(weights, rate)
        self._new: Weights | None = None
        self._has_ended = False  # an update has failed: no further one is tried
        self.num_failed = 0

    @property
    def weights(self) -> Weights:
        """Those of the last update."""
        return self._adam.weights

    def learn(self, lessons: Sequence[Lesson]) -> None:
        if self._has_ended:
            return
        again = self._random.sample(self._kept, min(len(self._kept), round(self._replay * len(lessons))))
        self._kept += lessons
        while sum(lesson.num_positions for lesson in self._kept) > KEPT * self._positions:
            self._kept.popleft()
        learned = [*lessons, *again]
        count = sum(lesson.num_positions for lesson in learned)

        def losses(weights: Weights) -> Iterator[Tensor]:
            for lesson in learned:
                yield lesson.loss(weights) / count

        try:
            changed, why = self._adam.update(losses), "it was not finite"
        except RuntimeError as error:  # such as too little memory: decoding goes on without learning
            self._has_ended, changed, why = True, False, f"{error}; no further one is tried"
        if changed:
            self._new = self._adam.weights
            return
        if not self.num_failed or self._has_ended:
            warnings.warn(f"the draft keeps the weights from before an update: {why}", stacklevel=2)
        self.num_failed += 1

    def poll(self) -> Weights | None:
        new, self._new = self._new, None
        return new

    def restart(self, weights: Weights) -> None:
        self._adam, self._new = OnlineAdam(weights, self._rate), None
