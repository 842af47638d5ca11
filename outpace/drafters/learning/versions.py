"""Versions of a drafter's weights: each update makes one while requests are decoded, and a worse one is taken
back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from outpace.drafters.learning.online_adam import Weights
from outpace.drafters.learning.trainer import Lesson, Trainer

DEVIATIONS = 3.0  # standard errors by which acceptance has to be lower for a version to be dropped


class Learnable(Protocol):
    """A draft model or draft head whose weights can be replaced between two decoding steps."""

    @property
    def weights(self) -> Weights:
        """At least float32; never written to."""
        ...

    @property
    def network(self) -> object:
        """What lessons compute their losses with. It can be pickled."""
        ...

    def use(self, weights: Weights) -> None:
        """Draft with these weights from now on."""
        ...

    def activate(self) -> None:
        """Draft with the weights used last, where copies share a network."""
        ...


@dataclass(eq=False)
class Version:
    """Weights, and how many draft tokens were tested and accepted while they were in use."""

    number: int  # 0: as they were given
    weights: Weights
    tested: int = 0
    accepted: int = 0

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the weights."""
        digest = hashlib.sha256()
        for each in self.weights:
            digest.update(each.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def is_worse_than(self, other: Version) -> bool:
        """Whether fewer draft tokens were accepted, by `DEVIATIONS` standard errors of the difference."""
        tested = self.tested, other.tested
        if not all(tested):
            return False
        rate = (self.accepted + other.accepted) / sum(tested)
        error = (rate * (1 - rate) * sum(1 / each for each in tested)) ** 0.5
        return other.accepted / other.tested - self.accepted / self.tested > DEVIATIONS * error


class Versions:
    """The version of a model's weights in use, and the one before it.

    An update makes a new version. If fewer draft tokens are accepted with it than with the one before, that
    one is restored in place of the next update, and its acceptance is measured anew: the texts may have
    changed. Memory: that of the weights once more, besides the trainer's."""

    def __init__(self, model: Learnable, trainer: Trainer) -> None:
        self.model, self.trainer = model, trainer
        self.current = Version(0, model.weights)
        self.before: Version | None = None  # None: there is none, or it was restored
        self.num_updates = self.num_rolled_back = 0

    def record(self, tested: int, accepted: int) -> None:
        """Count draft tokens that were tested with the current version."""
        self.current.tested += tested
        self.current.accepted += accepted

    def update(self, lessons: Sequence[Lesson]) -> bool:
        """Learn from lessons while the trainer is not busy, or restore the version before in place of that;
        returns whether the weights have changed, which may be later, in `poll`."""
        if self.before is not None and self.current.is_worse_than(self.before):
            self._use(Version(self.before.number, self.before.weights))
            self.before = None
            self.trainer.restart(self.current.weights)
            self.num_rolled_back += 1
            return True
        self.trainer.learn(lessons)
        return self.poll()

    def poll(self) -> bool:
        """Make a version of an update that has ended; returns whether there is one."""
        weights = self.trainer.poll()
        if weights is None:
            return False
        self.num_updates += 1
        self.before = self.current
        self._use(Version(self.num_updates, weights))
        return True

    def restore(self, number: int, weights: Weights) -> None:
        """Go on from a version that was saved, while the trainer is not busy."""
        self.num_updates, self.before = number, None
        self.trainer.restart(weights)
        self._use(Version(number, weights))

    def _use(self, version: Version) -> None:
        self.current = version
        self.model.use(version.weights)
