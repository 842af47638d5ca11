"""A method with a schedule of its own is decoded by it everywhere: in batches, proofs and a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import torch

import outpace
from outpace.api.settings import resolve_settings
from outpace.controllers.fixed import Fixed
from outpace.core.contract_checks import ContractError
from outpace.core.contracts import Parts, Step, Target, recipe
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session, speculative_steps
from outpace.drafters.compose.methods import check_rejection
from outpace.drafters.model.draft_model import DraftModel
from outpace.proof.decode_all import texts
from outpace.proof.models import tables
from outpace.proof.suite import prove_default
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.serving.methods import open_methods
from outpace.serving.request import GenerationRequest
from outpace.serving.scheduler import Scheduler
from outpace.verifiers.rejection import Rejection
from tests.serving.clients import Client

LOG: list[int] = []  # rows of each step of `one_at_a_time`
# the same as a recipe file, for commands that take the name of a method
FILE = '''"""One step after the other, drafted or not."""
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.ngram import NGram
from outpace.verifiers.match import Match
from tests.test_schedule import one_at_a_time

@recipe(paper="none", family="mine")
def scheduled(target: Target) -> Parts:
    """One step after the other."""
    return Parts(target, NGram(3), Match(), Fixed(3), schedule=one_at_a_time)
'''


def one_at_a_time(session: Session) -> Iterator[Step]:
    """Every second step is without drafts."""
    for number in count():
        if not session.rows:
            return
        LOG.append(len(session.rows))
        drafting = session.parts
        if number % 2:
            session.parts = replace(drafting, controller=Fixed(0))
        yield from islice(speculative_steps(session), 1)
        session.parts = drafting


def given_up(session: Session) -> Iterator[Step]:
    """A mistake: only the first step."""
    yield from islice(speculative_steps(session), 1)


def nothing(session: Session) -> Iterator[Step]:
    """A mistake: no step at all."""
    return iter(())


@recipe(paper="none", family="mine")
def scheduled(target: Target, *, draft: Target, depth: int = 2) -> Parts:
    """A method with a schedule."""
    return Parts(target, DraftModel(draft), Rejection(), Fixed(depth), schedule=one_at_a_time)


def parts(**changes: Any) -> Parts:
    models = tables()
    return replace(scheduled.build(models.target, draft=models.drafts[0]), **changes)


@pytest.fixture(autouse=True)
def empty_log() -> None:
    LOG.clear()


def test_its_distribution_is_proven() -> None:
    proof = prove_default(scheduled, tables(), 300)
    assert proof.verdict == "exact" and proof.accepted and len(LOG) > 10 and max(LOG) > 1


def test_batches_and_python_use_it(tmp_path: Path, tiny: Any) -> None:
    assert len(texts(parts(), [[0, 1], [2]], [SamplingParams(max_tokens=6)] * 2)) == 2 and LOG[0] == 2
    LOG.clear()
    file = tmp_path / "scheduled.py"
    file.write_text(FILE, encoding="utf-8")
    (found,) = outpace.generate(tiny.target, "def f(a, a, a", method=file, max_tokens=12)
    (plain,) = outpace.generate(tiny.target, "def f(a, a, a", method="autoregressive", max_tokens=12)
    assert found.tokens == plain.tokens and LOG
    LOG.clear()
    assert "".join(outpace.stream(tiny.target, "def f(a, a, a", method=file, max_tokens=12)) == found.text
    assert LOG


def test_a_server_uses_it_and_no_other_method_beside_it(tmp_path: Path, tiny: Any) -> None:
    model = outpace.load(tiny.target, dtype="float64")
    file = tmp_path / "scheduled.py"
    file.write_text(FILE, encoding="utf-8")
    with pytest.raises(ValueError, match="scheduled decodes by a schedule of its own, so no other .* alone"):
        open_methods(model, str(file), {}, [("prompt-lookup", {})], None)
    with pytest.raises(ValueError, match="mine decodes by a schedule of its own: leave it out"):
        check_rejection({"mine": parts()})
    scheduler = Scheduler(open_methods(model, str(file), {}, [], None))
    settings = resolve_settings({"max_tokens": 4}, vocab=model.target.vocab)
    clients = [Client(scheduler, GenerationRequest([3, 1, seed], settings, 100, seed)) for seed in range(3)]
    while scheduler.step():
        pass
    assert all(len(client.result.tokens) == 4 for client in clients) and max(LOG) == 3


@pytest.mark.parametrize("schedule", [given_up, nothing])
def test_a_schedule_that_leaves_requests_is_named(schedule: Any) -> None:
    session = Session(
        parts(schedule=schedule), [torch.tensor([0, 1])], [SamplingParams(max_tokens=5)], LazyTargetProbs
    )
    with pytest.raises(ContractError, match=f"the schedule {schedule.__name__} ended before its requests:"):
        list(session.steps())
    assert not session.rows
