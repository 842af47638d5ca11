"""A trainer in a process of its own: its updates are those of one in the same process, and nothing that
happens to it changes or ends decoding."""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.learning.online_adam import Weights
from outpace.drafters.learning.online_learning import LearningDrafter
from outpace.drafters.learning.trainer import LocalTrainer
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes.online.aurora import aurora
from outpace.recipes.online.online_sd.recipe import online_sd
from outpace.serving.learning import trainer_process
from outpace.serving.learning.apart import learn_apart, learner_of
from outpace.serving.learning.trainer_process import Settings, TrainerProcess
from outpace.serving.learning.weights_file import NAME, load
from tests.serving.http.conftest import wait_until

NAMES = ("online-sd", "aurora")
BELONGS_TO = {"method": "some"}


def parts_of(name: str, **options: Any) -> Parts:
    models, given = transformers_models(), {"positions": 4, "learning_rate": 0.02, "depth": 3, **options}
    if name == "aurora":
        return aurora.build(models.target, **given)
    return online_sd.build(models.target, draft=models.drafts[0], **given)


def learner(parts: Parts) -> LearningDrafter:
    return learner_of({"it": parts})


@pytest.fixture
def apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """Lets parts learn in another process, which ends with the test."""
    caplog.set_level(logging.WARNING, trainer_process.log.name)
    made: list[TrainerProcess] = []

    def begin(parts: Parts, **settings: Any) -> TrainerProcess:
        drafter = learner(parts)
        trainer = drafter.learning.versions.trainer
        assert isinstance(trainer, LocalTrainer)
        process = TrainerProcess(drafter.learning, trainer, Settings(tmp_path, BELONGS_TO, **settings))
        drafter.learning.versions.trainer = process
        made.append(process)
        return process

    yield begin
    for process in made:
        process.close()


def decode(parts: Parts, seed: int, waits: TrainerProcess | None = None) -> list[list[int]]:
    """Three texts; after each step it waits for the update in flight, if there is one."""

    def settle(step: object) -> None:
        if waits is not None and waits._flight is not None:
            waits._flight.exception(300)

    sampling = [SamplingParams(1.0, max_tokens=20, seed=10 * seed + row) for row in range(3)]
    return texts(parts, [(0, 1), (2,), (1,)], sampling, observe=settle)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_updates_are_those_of_a_trainer_in_the_same_process(name: str, apart: Any) -> None:
    """The lessons of each update, learned here by a trainer that begins with the same weights."""
    parts = parts_of(name)
    process = apart(parts)
    versions = learner(parts).learning.versions
    here = parts_of(name)
    trainer = learner(here).learning.versions.trainer
    assert isinstance(trainer, LocalTrainer) and trainer is not process
    given: list[Sequence[Any]] = []
    learn = process.learn

    def noted(lessons: Sequence[Any]) -> None:
        given.append(list(lessons))
        learn(lessons)

    process.learn = noted
    decode(parts, 0, process)
    assert versions.num_updates > 3 and versions.num_rolled_back == 0
    for lessons in given[: versions.num_updates]:
        trainer.learn(lessons)
    for ours, theirs in zip(trainer.weights, versions.current.weights, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert process.is_alive and process.num_deaths == 0


@pytest.mark.slow
def test_a_trainer_that_dies_is_started_again_and_then_given_up(
    apart: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process, "RESTARTS", 1)
    parts = parts_of("online-sd")
    process, versions = apart(parts), learner(parts).learning.versions
    decode(parts, 0, process)
    before = versions.num_updates
    assert before > 1
    os.kill(process.pid, signal.SIGKILL)
    assert [len(text) for text in decode(parts, 1, process)] == [20] * 3
    assert "exit code -9" in caplog.text and "started again" in caplog.text
    assert process.num_deaths == 1 and process.is_alive
    # the new process goes on from the weights in use
    assert versions.num_updates > before
    os.kill(process.pid, signal.SIGKILL)
    process._process.join()
    decode(parts, 2, process)
    good = versions.current
    assert not process.is_alive and process.num_deaths == 2
    assert "nothing more is learned" in caplog.text
    assert [len(text) for text in decode(parts, 9, process)] == [20] * 3 and versions.current is good


@dataclass(eq=False)
class Bad:
    """A lesson that cannot be learned."""

    how: str
    num_positions: int = 1

    def loss(self, weights: Weights) -> Tensor:
        if self.how == "memory":
            raise torch.OutOfMemoryError("no memory is left")
        return weights[0].sum() * math.nan


@pytest.mark.slow
def test_an_update_that_fails_leaves_the_last_version(apart: Any, caplog: pytest.LogCaptureFixture) -> None:
    parts = parts_of("online-sd")
    process, versions = apart(parts), learner(parts).learning.versions
    decode(parts, 0, process)
    process.poll()
    good = versions.current
    for how, sentence in (
        ("nan", "it was not finite"),
        ("memory", "no memory is left; no further one is tried"),
    ):
        for _ in range(2):
            process.learn([Bad(how)])
            wait_until(lambda: process._flight.done())
            assert process.poll() is None
        assert versions.current is good and process.is_alive
        assert caplog.text.count(f"keeps the weights from before an update: {sentence}") == 1


@pytest.mark.slow
def test_decoding_never_waits_for_the_trainer(apart: Any) -> None:
    """A trainer that is stopped, as if it were very slow, leaves steps out, and loses no text."""
    parts = parts_of("online-sd")
    process, learning = apart(parts), learner(parts).learning
    os.kill(process.pid, signal.SIGSTOP)
    try:
        found = [decode(parts, seed) for seed in range(3)]
        assert [len(text) for batch in found for text in batch] == [20] * 9
        assert process.is_busy and learning.num_left_out > 5 and learning.versions.num_updates == 0
    finally:
        os.kill(process.pid, signal.SIGCONT)
    process._flight.result(300)
    decode(parts, 4)
    assert learning.versions.num_updates > 0
    os.kill(process.pid, signal.SIGSTOP)
    while not process.is_busy:
        decode(parts, 5)
    flight = process._flight
    process.close()  # in the middle of an update, which is no death
    assert flight.result(300) is None and not process.is_alive and process.num_deaths == 0


@pytest.mark.slow
def test_weights_in_use_are_saved_while_serving_and_at_the_end(tmp_path: Path, apart: Any) -> None:
    parts = parts_of("online-sd")
    process, versions = apart(parts, seconds_between=0.0), learner(parts).learning.versions
    decode(parts, 0, process)
    while_serving = load(tmp_path, BELONGS_TO, versions.current.weights)
    assert while_serving is not None and 0 < while_serving.version <= versions.current.number
    process.close()
    at_end = load(tmp_path, BELONGS_TO, versions.current.weights)
    assert at_end is not None and at_end.version == versions.current.number
    assert all(map(torch.equal, at_end.weights, versions.current.weights))
    # a server that begins in this folder goes on from there
    again = parts_of("online-sd")
    second = learn_apart(learner(again), tmp_path, BELONGS_TO)
    found = learner(again).learning.versions
    try:
        assert found.current.number == at_end.version
        assert all(map(torch.equal, found.current.weights, at_end.weights))
        decode(again, 1, second)
        assert found.num_updates > at_end.version
    finally:
        second.close()


@pytest.mark.slow
def test_a_version_with_worse_drafts_is_not_saved(tmp_path: Path, apart: Any) -> None:
    parts = parts_of("online-sd")
    process, versions = apart(parts), learner(parts).learning.versions
    decode(parts, 0, process)
    assert versions.before is not None and versions.before.number > 0
    for version, accepted in ((versions.before, 900), (versions.current, 100)):
        version.tested, version.accepted = 1000, accepted
    process.close()
    found = load(tmp_path, BELONGS_TO, versions.current.weights)
    assert found is not None and found.version == versions.before.number


@pytest.mark.slow
def test_a_full_disk_is_logged_once_and_learning_goes_on(
    tmp_path: Path, apart: Any, caplog: pytest.LogCaptureFixture
) -> None:
    parts = parts_of("online-sd")
    process, versions = apart(parts, seconds_between=0.0), learner(parts).learning.versions
    (tmp_path / f"{NAME}").mkdir()  # a file cannot take this place
    decode(parts, 0, process)
    assert versions.num_updates > 2
    assert caplog.text.count("learned weights cannot be saved") == 1


def test_what_cannot_learn_apart_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outpace.recipes import get

    models = transformers_models()
    plain = get("speculative-sampling").build(models.target, draft=models.drafts[0])
    with pytest.raises(ValueError, match="one drafter that learns, and plain has none.*online-sd"):
        learner_of({"plain": plain})
    two = {"one": parts_of("online-sd"), "other": parts_of("online-sd")}
    with pytest.raises(ValueError, match="one, other have 2"):
        learner_of(two)
    drafter = learner(parts_of("online-sd"))
    monkeypatch.setattr(drafter.learning.versions.model.network, "opener", lambda: None, raising=False)
    with pytest.raises(ValueError, match="cannot be copied to another process.*serve without --learn"):
        learn_apart(drafter, tmp_path, BELONGS_TO)


def test_the_head_of_another_process_has_no_target() -> None:
    parts = parts_of("aurora")
    target: Any = parts.target
    network: Any = learner(parts).learning.versions.model.network
    copied: Any = trainer_process._loads(trainer_process._dumps(network), None)
    assert network._reading.head.is_for(target) and not copied._reading.head.is_for(target)
