"""The parts of a step's time, on the host and on a device that computes later than work is launched."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, pairwise
from time import sleep
from typing import Any

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core import clock, step_timer
from outpace.core.clock import clock_of, host_clock
from outpace.core.contracts import Noise, Parts, Scores, TargetProbs, TokenTree, Verdict
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model import draft_reader
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableCache, TableTarget
from outpace.recipes.base.autoregressive import autoregressive
from outpace.sampling import target_probs
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rejection import Rejection


def test_the_time_between_two_steps_is_the_callers() -> None:
    session = Session(autoregressive.build(TableTarget(5)), (), (), LazyTargetProbs)
    for _ in range(2):  # the time between two runs of the loop is nobody's
        session.add(torch.tensor([1, 2]), SamplingParams(max_tokens=3))
        steps = session.steps()
        first = next(steps)
        assert "caller" not in first.seconds
        sleep(0.02)
        second = next(steps)
        assert second.seconds["caller"] >= 0.02
        assert len(list(steps)) == 1
        sleep(0.02)


class Device:
    """A device that computes after the call that launches its work has returned, on a virtual clock."""

    def __init__(self) -> None:
        self.now = 0.0  # of the host, in seconds
        self.done = 0.0  # when the work launched so far is done
        self.num_waits = 0  # times that a duration was read before its end

    def launch(self, seconds: float) -> None:
        """Launch work, which takes the host a tenth of a second."""
        self.now += 0.1
        self.done = max(self.done, self.now) + seconds

    def wait(self) -> None:
        """Wait until all work is done."""
        self.now = max(self.now, self.done)


@dataclass
class DeviceEvent:
    """In place of torch.cuda.Event: a point in the order of a device's work."""

    device: Device
    at: float = 0.0

    def record(self, stream: Any) -> None:
        self.at = max(self.device.now, self.device.done)

    def synchronize(self) -> None:
        if self.device.now < self.at:
            self.device.num_waits += 1
            self.device.now = self.at

    def elapsed_time(self, end: DeviceEvent) -> float:
        assert max(self.at, end.at) <= self.device.now, "an event that the device has not passed has no time"
        return 1000 * (end.at - self.at)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device whose events are those of a GPU."""
    made = Device()
    monkeypatch.setattr(clock, "perf_counter", lambda: made.now)
    monkeypatch.setattr(torch.cuda, "Event", lambda *, enable_timing: DeviceEvent(made))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    for module in (step_timer, draft_reader, target_probs):
        monkeypatch.setattr(module, "clock_of", lambda _: clock_of(torch.device("cuda")))
    return made


class LaunchedCache(TableCache):
    """A table model's cache, where a commit takes this long on the device."""

    def __init__(self, device: Device, seconds: float) -> None:
        super().__init__(1, 99)
        self._device, self._seconds = device, seconds

    def commit(self, *args: Any) -> None:
        self._device.launch(self._seconds)
        super().commit(*args)


class Launched(TableTarget):
    """A table model whose forwards and commits take this long on the device."""

    def __init__(self, device: Device, seconds: float, commit: float = 0.0) -> None:
        super().__init__(5, seed=1)
        self._device, self._seconds, self._commit = device, seconds, commit

    def open(self, slots: int, capacity: int) -> TableCache:
        return LaunchedCache(self._device, self._commit)

    def score(self, *args: Any, **keywords: Any) -> Scores:
        self._device.launch(self._seconds)
        return super().score(*args, **keywords)


def test_parts_that_are_recorded_twice_in_a_step_add_up(device: Device) -> None:
    timer = step_timer.StepTimer()
    timer.restart()
    for part, seconds in (("draft", 0.5), ("score", 2.0), ("draft", 0.25), ("verify", 1.0)):
        device.launch(seconds)
        if part != "verify":
            timer.record(part)
    device.wait()
    timer.settle("verify")
    assert timer.seconds["score"] == 2.0 and timer.seconds["draft"] == pytest.approx(0.1 + 0.5 + 0.25)


class Waits(Rejection):
    """Verification that brings the verdict to the host."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict = super().verify(tree, target_probs, scores, noise)
        self._device.launch(0.25)
        self._device.wait()
        return verdict


def test_the_work_of_a_device_is_timed_where_it_was_launched_and_nobody_waits(device: Device) -> None:
    drafter = DraftModel(Launched(device, 0.5), sampled=False)
    parts = Parts(Launched(device, 2.0, commit=0.75), drafter, Waits(device), Fixed(3))
    session = Session(parts, [torch.tensor([1, 2])], [SamplingParams(max_tokens=20)], LazyTargetProbs)
    steps = session.steps()
    first = next(steps)
    assert first.draft.forwards == 3
    # the host launched all this in half a second, and waited for it while it verified
    assert float(first.draft.seconds) == pytest.approx(1.6)  # the device idled while the first was launched
    assert first.seconds["draft"] == pytest.approx(1.6)
    assert first.seconds["score"] == pytest.approx(2.0)
    assert first.seconds["verify"] == pytest.approx(0.25)
    # a commit is launched on a device that has nothing else to do; the next step waits for it
    assert first.seconds["commit"] == pytest.approx(0.1)
    ended = device.now
    device.now += 0.5  # of the caller
    second = next(steps)
    assert second.seconds["commit"] == pytest.approx(0.1 + 0.75 - 0.5)
    assert second.seconds["caller"] == 0.5 and second.seconds["observe"] == 0
    assert sum(second.seconds.values()) == pytest.approx(device.now - ended)
    ended = device.now
    for step in steps:
        assert sum(step.seconds.values()) == pytest.approx(device.now - ended)
        ended = device.now
    assert device.num_waits == 0


def test_times_of_several_drafters_add_up_before_they_are_known(device: Device) -> None:
    mark = clock_of(torch.device("cuda"))
    start = mark()
    device.launch(1.0)
    taken = start.until(mark())
    total = sum([0.5, taken, 0.25, taken])
    assert device.num_waits == 0 and float(total) == pytest.approx(2.95)
    assert float(total) == pytest.approx(2.95) and device.num_waits == 1


def test_a_cpu_is_timed_by_the_clock_of_the_host() -> None:
    assert clock_of(torch.device("cpu")) is host_clock


def test_the_parts_of_a_step_on_a_cpu_are_all_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(clock, "perf_counter", lambda: float(next(ticks)))
    session = Session(
        autoregressive.build(TableTarget(5)),
        [torch.tensor([1, 2])],
        [SamplingParams(max_tokens=5)],
        LazyTargetProbs,
    )
    totals, ended = list[float](), list[float]()
    for step in session.steps():
        totals.append(sum(step.seconds.values()))
        ended.append(session.timer._last or 0.0)
    assert totals[1:] == [after - before for before, after in pairwise(ended)]
