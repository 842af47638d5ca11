"""Requests that join a running session, wait, are cancelled and reuse slots: each gets the text that it gets
alone, and the caches hold nothing afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Shape, Step, Target, TargetWithLayers
from outpace.core.sampling_params import SamplingParams
from outpace.decode import PROMPT_TOKENS, Session
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kangaroo.head import untrained_kangaroo
from outpace.models.table import TableTarget
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.models import transformers_models
from outpace.proof.per_row_drafter import row_by_row
from outpace.proof.reference import table_logits
from outpace.recipes import get
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection
from tests.tiers import slow

REQUESTS = 12


def adapter_of(target: Target) -> HeadModel:
    assert isinstance(target, TargetWithLayers)
    return HeadModel(untrained_kangaroo(target))


BUILD: dict[str, Callable[[Target, Target], Parts]] = {
    "plain": lambda target, draft: get("autoregressive").build(target),
    "lookup": lambda target, draft: Parts(target, NGram(2, allow_shorter=True), Match(), Fixed(4)),
    "chain": lambda target, draft: Parts(target, DraftModel(draft), Rejection(), Fixed(3)),
    "tree": lambda target, draft: Parts(
        target, DraftModel(draft), Rejection(), Fixed(Shape.branching((2, 2, 1)))
    ),
    "learns": lambda target, draft: get("token-recycling").build(target, nodes_per_depth=(1, 2)),
    "self": lambda target, draft: get("layerskip").build(target, depth=3),  # on the target's KV cache
    "exits": lambda target, draft: get("s2d").build(target, draft=draft, depth=3),
    # drafters that need outputs at prompts, which therefore have forwards of their own
    "recycling": lambda target, draft: get("token-recycling").build(target, learn_from_prompts=True),
    "adapter": lambda target, draft: get("kangaroo").build(target, head=adapter_of(target), threshold=0.3),
}


@dataclass
class Request:
    """A request, and the step before which it joins and the step after which it is cancelled, if any."""

    prompt: list[int]
    sampling: SamplingParams
    joins: int
    cancelled: int | None
    output: list[int] = field(default_factory=list)
    cut: bool = False  # it was cancelled before its end


def requests(vocab: int, seed: int) -> list[Request]:
    choice = random.Random(seed)
    made = []
    for index in range(REQUESTS):
        prompt = [choice.randrange(3, vocab) for _ in range(choice.choice([1, 2, 3, 9, 23, 40]))]
        sampling = SamplingParams(
            choice.choice([0.0, 0.0, 0.8]), max_tokens=choice.randint(1, 20), seed=index, stop=(2,)
        )
        joins = choice.randrange(25)
        made.append(Request(prompt, sampling, joins, joins + 4 if index % 5 == 4 else None))
    return made


def serve(session: Session, waiting: Sequence[Request], rows: int) -> list[Step]:
    """Decode the requests, at most `rows` at a time; each request's `output` is what it generated."""
    waiting = sorted(waiting, key=lambda each: each.joins)
    running: dict[int, Request] = {}
    steps: list[Step] = []

    def join() -> None:
        while waiting and waiting[0].joins <= len(steps) and len(running) < rows:
            request = waiting.pop(0)
            slot = session.add(torch.tensor(request.prompt), request.sampling)
            assert slot not in running
            running[slot] = request

    while waiting or running:
        join()
        for step in session.steps():
            steps.append(step)
            for slot, request in list(running.items()):
                request.output = session.request(slot).output()
                if slot not in session.rows:
                    del running[slot]
                elif request.cancelled is not None and len(steps) > request.cancelled:
                    session.cancel(slot)
                    del running[slot]
            join()
        if waiting and not running:
            waiting[0].joins = 0  # nothing is left to wait for
    return steps


def alone(parts: Parts, request: Request) -> list[int]:
    session = Session(parts, [torch.tensor(request.prompt)], [request.sampling], LazyTargetProbs)
    list(session.steps())
    return session.request(0).output()


def check(
    build: Callable[[], Parts], vocab: int, rows: int, prompt_tokens: int, seed: int
) -> tuple[list[Step], list[Request]]:
    given = requests(vocab, seed)
    parts = build()
    session = Session(parts, (), (), LazyTargetProbs, prompt_tokens=prompt_tokens)
    steps = serve(session, given, rows)
    for request in given:
        expected = alone(build(), request)
        if request.cancelled is not None and len(request.output) < len(expected):
            expected = expected[: len(request.output)]
            request.cut = True
        assert request.output == expected
    assert set(session.cache.lengths) == {0} and len(session.cache.lengths) <= rows
    assert session.cache.num_bytes == 0
    return steps, given


@pytest.mark.parametrize("prompt_tokens", [slow(1), 7, slow(PROMPT_TOKENS)])
@pytest.mark.parametrize("name", BUILD)
def test_requests_that_join_and_leave_get_the_text_they_get_alone(name: str, prompt_tokens: int) -> None:
    target, draft = TableTarget(12, seed=1, order=2), TableTarget(12, seed=2, order=1)
    cut = 0
    for seed in range(3):
        steps, given = check(lambda: BUILD[name](target, draft), 12, 4, prompt_tokens, seed)
        mixed = [step for step in steps if any(step.generated) and not all(step.generated)]
        assert bool(mixed) == (prompt_tokens < 40 and name not in ("recycling", "adapter"))
        if name != "plain":
            assert any(len(tokens) > 1 for step in steps for tokens in step.generated)
        cut += sum(request.cut for request in given)
    assert cut


@pytest.mark.parametrize(
    ("name", "window"),
    [("plain", None), ("chain", 6), ("tree", None), ("tree", 6), ("adapter", None), ("exits", None)],
)
@pytest.mark.parametrize("prompt_tokens", [5, slow(PROMPT_TOKENS)])
def test_so_they_do_with_transformers_models(name: str, window: int | None, prompt_tokens: int) -> None:
    models = transformers_models(window, 12)
    check(lambda: BUILD[name](models.target, models.drafts[0]), 12, 4, prompt_tokens, 5)


@pytest.mark.parametrize("prompt_tokens", [1, 2, 3])
@pytest.mark.parametrize("name", ["chain", "tree", "learns"])
def test_prompts_that_are_read_in_parts_are_exact(name: str, prompt_tokens: int) -> None:
    target, draft = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)
    top_k = 2 if name == "tree" else 0  # a tree has many outcomes
    cases = [
        Case((0, 1, 2, 1), SamplingParams(1.0, top_k=top_k, max_tokens=3)),
        Case((2, 0), SamplingParams(0.7, top_k=top_k, max_tokens=3)),
    ]
    build = row_by_row(lambda: BUILD[name](target, draft))
    found = enumerate_distributions(build, cases, batch=7, prompt_tokens=prompt_tokens)
    assert largest_error(found, table_logits(target.logits, target.state), cases) < 1e-12
    assert found.counts.accepted


def test_tokens_beyond_the_vocabulary_are_refused() -> None:
    session = Session(BUILD["plain"](TableTarget(3), TableTarget(3)), (), (), LazyTargetProbs)
    with pytest.raises(ValueError, match="token id outside of 0 to 2"):
        session.add(torch.tensor([1, 3]), SamplingParams())
    assert not session.rows
