"""The buffer of a drafter that learns online, and the versions of its weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from outpace.core.contracts import Step
from outpace.core.tree import Forest
from outpace.drafters.learning.online_adam import Weights
from outpace.drafters.learning.online_learning import OnlineLearning
from outpace.drafters.learning.trainer import KEPT, LocalTrainer
from outpace.drafters.learning.versions import Versions


@dataclass
class Model:
    """Weights that are in use."""

    weights: Weights = (torch.ones(2),)
    network: None = None

    def use(self, weights: Weights) -> None:
        self.weights = weights

    def activate(self) -> None:
        """Does nothing: it has no copies."""


@dataclass
class Part:
    """A lesson of some positions, which notes when it is learned."""

    number: int
    num_positions: int
    learned: list[int]

    def loss(self, weights: Weights) -> Tensor:
        self.learned.append(self.number)
        return weights[0].square().sum() * self.num_positions


@dataclass
class Parts:
    """Notes three positions of each step."""

    learned: list[int] = field(default_factory=list[int])
    new: dict[int, int] = field(default_factory=dict[int, int])
    count: int = 0

    def note(self, step: Step, row: int) -> int:
        slot = step.ctx.slots[row]
        self.new[slot] = self.new.get(slot, 0) + 3
        return 3

    def take(self, slot: int) -> Part | None:
        if not (positions := self.new.pop(slot, 0)):
            return None
        self.count += 1
        return Part(self.count, positions, self.learned)

    def forget(self, slot: int) -> None:
        assert slot not in self.new


@dataclass
class Sum:
    """A lesson whose loss is the sum of the weights, and what happens in place of that."""

    factor: float = 1.0
    error: Exception | None = None
    num_positions: int = 1

    def loss(self, weights: Weights) -> Tensor:
        if self.error is not None:
            raise self.error
        return weights[0].sum() * self.factor


def made(model: Model, rate: float, positions: int = 1, replay: float = 0.0) -> Versions:
    return Versions(model, LocalTrainer(model.weights, rate, positions=positions, replay=replay))


def step(slots: tuple[int, ...], ends: tuple[int, ...] = (), accepted: int = 0) -> Step:
    """A step that drafted two tokens in each row, of which `accepted` were accepted in the first."""
    forest = Forest.chain((2,) * len(slots))
    leaf = [forest.nodes[row][accepted if not row else 0] for row in range(len(slots))]
    found: Any = SimpleNamespace(
        ctx=SimpleNamespace(slots=slots),
        generated=[[0]] * len(slots),
        draft=SimpleNamespace(tree=SimpleNamespace(forest=forest)),
        verdict=SimpleNamespace(leaf=leaf),
        finished=ends,
    )
    return cast(Step, found)


def test_it_learns_after_some_requests_or_positions_and_again_from_earlier_ones() -> None:
    parts, versions = Parts(), made(Model(), 0.01, positions=12, replay=1.0)
    learning = OnlineLearning(parts, versions, requests=2, positions=12)
    trainer = cast(LocalTrainer, versions.trainer)
    assert not learning.observe(step((0, 1)))
    learning.release([1])  # cancelled: what it showed is learned, but it is no request that has ended
    assert not learning.observe(step((0,), ends=(0,)))
    learning.release([0])
    assert learning.observe(step((2,), ends=(0,))) is True and parts.learned == [1, 2, 3]
    learning.release([2])
    del parts.learned[:]
    changes = [learning.observe(step((3,))) for _ in range(4)]
    assert changes == [False, False, False, True]  # 12 positions of a request that goes on
    assert parts.learned[0] == 4 and len(parts.learned) == 2 and parts.learned[1] in (1, 2, 3)
    for _ in range(40):
        learning.observe(step((3, 4)))
        assert sum(lesson.num_positions for lesson in trainer._kept) <= KEPT * 12
    assert versions.num_updates == 22 and versions.current.number == 22
    for wrong in ({"requests": 0}, {"positions": 0}):
        with pytest.raises(ValueError, match="give at least one"):
            OnlineLearning(parts, versions, **{"requests": 1, "positions": 1, **wrong})
    for limits in ({"positions": 0, "replay": 0.0}, {"positions": 1, "replay": -0.1}):
        with pytest.raises(ValueError, match="give at least one"):
            LocalTrainer(versions.current.weights, 0.1, **cast(Any, limits))


class Elsewhere:
    """A trainer whose updates end when that is asked for."""

    def __init__(self) -> None:
        self.is_busy, self.learned = False, list[list[int]]()
        self.new: Weights | None = None

    def learn(self, lessons: Sequence[Any]) -> None:
        assert not self.is_busy
        self.is_busy = True
        self.learned.append([lesson.num_positions for lesson in lessons])

    def end(self, weights: Weights | None) -> None:
        self.is_busy, self.new = False, weights

    def poll(self) -> Weights | None:
        new, self.new = self.new, None
        return new

    def restart(self, weights: Weights) -> None:
        assert not self.is_busy


def test_while_a_trainer_is_busy_nothing_more_is_noted_than_the_next_update() -> None:
    parts, trainer, model = Parts(), Elsewhere(), Model()
    learning = OnlineLearning(parts, Versions(model, trainer), requests=100, positions=12)
    for _ in range(10):
        assert not learning.observe(step((0, 1)))
    # 12 positions are being learned, and as many wait; later steps are not noted
    assert trainer.learned == [[6, 6]] and learning._num_new == 12 and learning.num_left_out == 6
    new = (torch.zeros(2),)
    trainer.end(new)
    assert learning.observe(step((0, 1), ends=(0,)))
    assert model.weights is new and learning.versions.current.number == 1
    assert trainer.learned == [[6, 6], [6, 6]] and learning._num_new == 0
    trainer.end(None)  # an update that was left out
    assert not learning.observe(step((1,))) and learning.versions.current.number == 1
    assert learning._num_new == 3


def test_a_version_with_worse_drafts_is_dropped_once() -> None:
    model = Model()
    versions, lessons = made(model, 0.1), [Sum()]
    given = model.weights
    versions.record(200, 160)
    assert versions.update(lessons) and versions.current.number == 1
    first = versions.current
    versions.record(200, 150)  # not clearly worse
    assert versions.update(lessons) and versions.current.number == 2 and versions.before is first
    versions.record(200, 100)
    assert versions.update(lessons) and versions.num_rolled_back == 1
    assert versions.current.number == 1 and model.weights is first.weights is not given
    assert versions.current.fingerprint == first.fingerprint
    versions.record(200, 90)  # other texts: the version that was restored is no better
    assert versions.update(lessons) and versions.current.number == 3
    versions.record(200, 95)
    assert versions.update(lessons) and versions.num_rolled_back == 1
    # a new optimizer: its first step is as long as that of the first update
    torch.testing.assert_close(first.weights[0] - 0.1, cast(Any, versions.before).weights[0])


@pytest.mark.parametrize("error", [None, torch.OutOfMemoryError("no memory is left")])
def test_a_failed_update_leaves_the_last_version_and_warns_once(error: Exception | None) -> None:
    model = Model()
    versions, bad = made(model, 0.1), [Sum(), Sum(math.nan, error)]
    assert versions.update([Sum()])
    good, mark = model.weights, versions.current.fingerprint
    with pytest.warns(UserWarning, match="not finite" if error is None else "no memory is left; no further"):
        assert not versions.update(bad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not versions.update(bad)
    assert model.weights is good and versions.current.fingerprint == mark
    assert versions.update([Sum()]) == (error is None)


def test_a_saved_version_is_gone_on_from() -> None:
    model, saved = Model(), (torch.full((2,), 5.0),)
    versions = made(model, 0.1)
    versions.restore(7, saved)
    assert model.weights is saved and versions.current.number == 7 and versions.before is None
    assert versions.update([Sum()]) and versions.current.number == 8
    torch.testing.assert_close(model.weights[0], saved[0] - 0.1)


def test_the_fingerprint_is_that_of_all_weights() -> None:
    found = [made(Model((torch.zeros(3), last * torch.eye(2))), 0.1).current for last in (0, 1, 1)]
    assert len({version.fingerprint for version in found}) == 2
