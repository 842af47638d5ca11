"""Versions of a drafter's weights: each update makes one while requests are decoded, and a worse one is taken
back."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from outpace.drafters.learning.online_adam import OnlineAdam, Weights

DEVIATIONS = 3.0  # standard errors by which acceptance has to be lower for a version to be dropped


class Learnable(Protocol):
    """A draft model or draft head whose weights can be replaced between two decoding steps."""

    @property
    def weights(self) -> Weights:
        """At least float32; never written to."""
        ...

    def use(self, weights: Weights) -> None:
        """Draft with these weights from now on."""
        ...

    def activate(self) -> None:
        """Draft with the weights used last, where copies share a network."""
        ...


@contextmanager
def using(model: Learnable, weights: Weights) -> Iterator[None]:
    """A context in which the model computes with other weights; at its end it has its own again."""
    before = model.weights
    model.use(weights)
    try:
        yield
    finally:
        model.use(before)


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

    An update makes a new version. If fewer draft tokens are accepted with it than with the one before, the
    next update restores that one instead, whose acceptance is then measured anew: the texts may have changed.
    An update that is not finite changes nothing; neither does one that fails, such as for lack of memory, and
    then none follows. Both warn once. Memory: that of the weights once more, besides `OnlineAdam`'s."""

    def __init__(self, model: Learnable, rate: float) -> None:
        self._model, self._rate = model, rate
        self.current = Version(0, model.weights)
        self.before: Version | None = None  # None: there is none, or it was restored
        self._adam = OnlineAdam(model.weights, rate)
        self._ended = False  # an update has failed: no further one is tried
        self.num_updates = self.num_failed = self.num_rolled_back = 0

    def record(self, tested: int, accepted: int) -> None:
        """Count draft tokens that were tested with the current version."""
        self.current.tested += tested
        self.current.accepted += accepted

    def update(self, losses: Callable[[Weights], Iterable[Tensor]]) -> bool:
        """Make a new version from losses, as `OnlineAdam.update`, or restore the one before; returns whether
        the weights have changed."""
        if self._ended:
            return False
        if self.before is not None and self.current.is_worse_than(self.before):
            self._use(Version(self.before.number, self.before.weights))
            self.before, self._adam = None, OnlineAdam(self.current.weights, self._rate)
            self.num_rolled_back += 1
            return True
        try:
            changed, why = self._adam.update(losses), "it was not finite"
        except RuntimeError as error:  # such as too little memory: decoding goes on without learning
            self._ended, changed, why = True, False, f"{error}; no further one is tried"
        if not changed:
            if not self.num_failed or self._ended:
                warnings.warn(f"the draft keeps the weights from before an update: {why}", stacklevel=2)
            self.num_failed += 1
            return False
        self.num_updates += 1
        self.before = self.current
        self._use(Version(self.num_updates, self._adam.weights))
        return True

    def _use(self, version: Version) -> None:
        self.current = version
        self._model.use(version.weights)
