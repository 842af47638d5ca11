"""A benchmark that other programs disturbed recommends nothing, and says why."""

from __future__ import annotations

import pytest
import torch

from outpace.bench.measure.disturbance import contradict, disturbance, unequal
from outpace.bench.measure.forward_cost import Timings
from outpace.bench.measure.run import EncodedPrompt, Run, Trial
from outpace.models.threads import busy, fitting_threads


def run(prompt: int, round: int, seconds: float) -> Run:
    case = EncodedPrompt(f"p{prompt}", "made", torch.tensor([1]))
    return Run("plain", Trial(prompt, (case,), 0.0, round), seconds, None, None, None, ((1, 2),))


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("bench.measure.disturbance", "models.threads"):
        monkeypatch.setattr(f"outpace.{module}.num_cpus", lambda: 2)


def test_a_machine_is_busy_when_its_processes_do_not_fit_on_the_cpus() -> None:
    assert busy(3.0, 1) and busy(3.0, 2) and not busy(2.2, 2)
    assert not busy(8.0, 8) and busy(9.0, 8)  # the user asked for eight threads
    assert not busy(None, 2)
    assert [fitting_threads(each, 8.0) for each in (1, 2, 8)] == [1, 1, 4]
    assert fitting_threads(2, 1.5) == fitting_threads(2, None) == 2


def test_forwards_contradict_each_other_if_more_nodes_take_far_less_time() -> None:
    assert contradict({1: 1.5, 2: 0.9, 32: 1.1}) and contradict({1: 1.04, 2: 1.2, 32: 0.6})
    assert not contradict({1: 6.2, 4: 6.0, 8: 7.1, 32: 9.0})


def test_the_same_work_is_compared_between_rounds() -> None:
    runs = [run(prompt, place, seconds) for prompt in range(3) for place, seconds in enumerate((1.0, 2.5))]
    assert unequal(runs) == pytest.approx(2.5)
    assert unequal(runs[::2]) is None
    assert "2.5 times as long" in (disturbance([1.0], 2, [], runs) or "")
    calm = [run(prompt, place, 1 + 0.1 * place) for prompt in range(3) for place in range(2)]
    assert disturbance([1.0], 2, [], calm) is None
    assert "other programs used the machine" in (disturbance([8.0, 7.0], 2, [], calm) or "")
    times = Timings({size: [1.0 / size] for size in (1, 2, 4)}, {})
    assert "forwards over few tokens" in (disturbance([], 2, [times], calm) or "")
