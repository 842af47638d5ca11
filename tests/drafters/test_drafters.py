"""What each drafter proposes, apart from the distribution."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Cache, Controller, Drafter, Parts, Plan, Step, Verifier, Want
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest
from outpace.decode import Session
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.no_draft import NoDraft
from outpace.drafters.synthetic import Synthetic
from outpace.models.table import TableTarget
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection

VOCAB = 5
TARGET = TableTarget(VOCAB, seed=4)
PROMPTS = [(0, 1, 2, 3), (2,), (1, 4, 1, 4, 1, 4)]


def run(
    drafter: Drafter,
    controller: Controller,
    verifier: Verifier | None = None,
    *,
    temperature: float = 0.0,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    max_tokens: int = 40,
    stop: tuple[int, ...] = (),
) -> tuple[list[list[int]], list[Step]]:
    sampling = [
        SamplingParams(temperature, max_tokens=max_tokens, stop=stop, seed=seed)
        for seed in range(len(prompts))
    ]
    parts = Parts(TARGET, drafter, verifier or Match(), controller)
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs)
    steps = list(session.steps())
    return [session.request(slot).output() for slot in range(len(prompts))], steps


def plain(**options: Any) -> list[list[int]]:
    return run(NoDraft(), Fixed(0), **options)[0]


def context(text: Sequence[int], cache: Cache | None = None, stop: tuple[int, ...] = ()) -> Context:
    noise = KeyedNoise([0], [1], [len(text)])
    cache = cache or TARGET.open(1, 100)
    return Context(
        (torch.tensor(text),), (len(text),), (99,), (0,), cache, (SamplingParams(stop=stop),), noise
    )


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draft_of_the_target_itself_is_fully_accepted(temperature: float) -> None:
    # only if the drafter's own cache is right after every accepted, skipped and full draft
    texts, steps = run(DraftModel(TARGET), Fixed(3), Rejection(), temperature=temperature)
    for step in steps:
        for row, generated in enumerate(step.generated):
            assert len(generated) == min(3, step.ctx.max_draft_depth[row]) + 1
    if temperature == 0:
        assert texts == plain()


class Wavering:
    """Depth changes from step to step and row to row, none at times."""

    want = Fixed.want
    plans_across_rows = False

    def __init__(self) -> None:
        self._random = Random(3)

    def plan(self, ctx: Context) -> Plan:
        return Plan(tuple(self._random.choice((0, 0, 1, 2, 5)) for _ in ctx.slots))

    def observe(self, step: Step) -> None: ...
    def release(self, slots: Sequence[int]) -> None: ...


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stop", [(), (3,)])
def test_matching_gives_plain_text_whatever_the_draft(temperature: float, stop: tuple[int, ...]) -> None:
    options: dict[str, Any] = {"temperature": temperature, "stop": stop}
    expected = plain(**options)
    drafters = [
        DraftModel(TableTarget(VOCAB, seed=9, order=2)),
        DraftModel(TARGET, sampled=False),
        NGram(3, allow_shorter=True),
        NGram(2),
    ]
    for drafter in drafters:
        assert run(drafter, Wavering(), **options)[0] == expected


@pytest.mark.parametrize("verifier", [Match(), Rejection()])
def test_a_row_alone_generates_the_same_as_in_a_batch(verifier: Verifier) -> None:
    draft = TableTarget(VOCAB, seed=9, order=2)
    together, _ = run(DraftModel(draft), Fixed(3), verifier, temperature=0.9)
    for slot, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(0.9, max_tokens=40, seed=slot)
        session = Session(
            Parts(TARGET, DraftModel(draft), verifier, Fixed(3)),
            [torch.tensor(prompt)],
            [sampling],
            LazyTargetProbs,
        )
        for _ in session.steps():
            pass
        assert session.request(0).output() == together[slot]


def test_the_same_parts_serve_one_session_after_another() -> None:
    drafter, lookup = DraftModel(TARGET), NGram(3, allow_shorter=True)
    for each in (drafter, lookup):
        first, _ = run(each, Fixed(4))
        assert run(each, Fixed(4))[0] == first == plain()


def naive(text: list[int], longest: int, most: int, allow_shorter: bool) -> list[int]:
    for size in range(min(longest, len(text)), 0, -1):
        for start in range(len(text) - size):
            following = text[start + size : start + size + most]
            if text[start : start + size] == text[-size:] and (len(following) == most or allow_shorter):
                return following
    return []


@pytest.mark.slow
@pytest.mark.parametrize("allow_shorter", [False, True])
def test_lookup_equals_a_naive_scan(allow_shorter: bool) -> None:
    random = Random(0)
    cache = TARGET.open(1, 100)
    for _ in range(10_000):
        text = [random.randrange(random.choice((2, 3, 8))) for _ in range(random.randrange(1, 30))]
        longest, most = random.randrange(1, 5), random.randrange(1, 6)
        drafter = NGram(longest, allow_shorter=allow_shorter)
        middle = random.randrange(1, len(text) + 1)
        drafter.propose(context(text[:middle], cache), Plan((most,)))  # reads the text in two parts
        tree = drafter.propose(context(text, cache), Plan((most,))).tree
        assert tree.tokens[1:].tolist() == naive(text, longest, most, allow_shorter)


def test_lookup_never_matches_the_suffix_to_itself() -> None:
    assert len(NGram(3, allow_shorter=True).propose(context([1, 2, 3]), Plan((5,))).tree) == 1


def test_lookup_drafts_nothing_behind_the_end_of_a_text() -> None:
    text = [1, 2, 3, 0, 4, 4, 1, 2]
    for allow_shorter in (False, True):
        assert NGram(allow_shorter=allow_shorter).propose(
            context(text, stop=(0,)), Plan((4,))
        ).tree.tokens.tolist() == [
            2,
            3,
            0,
        ]
    # the whole continuation has to be there, also where it is not drafted
    assert len(NGram().propose(context(text, stop=(0,)), Plan((7,))).tree) == 1


def test_lookup_forgets_a_request_that_is_released() -> None:
    lookup = NGram(allow_shorter=True)
    lookup.propose(context([1, 2, 3]), Plan((5,)))
    lookup.release([0])
    assert lookup.propose(context([4, 4]), Plan((5,))).tree.tokens.tolist() == [4, 4]


@pytest.mark.slow
def test_synthetic_acceptance_has_the_given_rate() -> None:
    prompts = [(1, 2)]
    text = plain(prompts=prompts, max_tokens=3_000)[0]
    for rate in (0.6, 0.8, 1.0):
        drafter = Synthetic([[*prompts[0], *text]], rate)
        again, steps = run(drafter, Fixed(4), prompts=prompts, max_tokens=3_000)
        assert again == [text]
        tested = sum(min(len(step.generated[0]), 4) for step in steps)
        kept = sum(len(step.generated[0]) - 1 for step in steps)
        assert kept / tested == pytest.approx(rate, abs=0.04)


def test_no_draft_with_one_token_to_generate() -> None:
    _, steps = run(DraftModel(TARGET), Fixed(4), max_tokens=1)
    assert all(len(step.draft.tree) == len(step.ctx.slots) for step in steps)


@pytest.mark.parametrize("want", [Want(), Want(prompt_logits=True)])
def test_a_drafter_observes_every_step_and_the_outputs_at_prompts_that_it_wants(want: Want) -> None:
    class Recording(NoDraft):
        def __init__(self) -> None:
            self.want = want
            self.steps: list[Step] = []

        def observe(self, step: Step) -> None:
            self.steps.append(step)

    recording = Recording()
    run(recording, Fixed(0), prompts=[(1, 2, 3)], max_tokens=5)
    generated = [step.generated for step in recording.steps]
    assert list(map(len, (tokens for (tokens,) in generated))) == [0] * want.prompt_logits + [1] * 5
    if want.prompt_logits:
        first = recording.steps[0]
        assert first.draft.tree.tokens.tolist() == [1, 2] and first.scores.logits is not None
        assert len(first.scores.logits) == 2 and list(first.verdict.bonus) == [3]


def test_a_chain_forest_keeps_rows_apart() -> None:
    lookup = NGram(1, allow_shorter=True)
    _, steps = run(lookup, Fixed(2), prompts=[(1, 2, 1), (3, 3)])
    forest = steps[0].draft.tree.forest
    assert forest is Forest.chain(tuple(len(row) - 1 for row in forest.nodes))
