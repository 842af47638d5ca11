"""Requests of many clients in one session: each gets the text that it gets alone, within the memory given."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
import torch

from outpace.api.row_output import Piece, RowOutput
from outpace.api.settings import resolve_settings
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Draft, Parts, Plan
from outpace.decode import PROMPT_TOKENS, Session
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.lookup.past_requests import PastRequests
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.no_draft import NoDraft
from outpace.models.table import TableTarget
from outpace.recipes import get
from outpace.recipes.training_free.rest import Retrieval
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.serving.engine_thread import EngineThread, QueueFull
from outpace.serving.request import Failed, Finished, GenerationRequest
from outpace.serving.scheduler import DRAFT_MARGIN, Scheduler
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection
from tests.serving.clients import Client, run

VOCAB = 12
TARGET, DRAFT = TableTarget(VOCAB, seed=1, order=2), TableTarget(VOCAB, seed=2, order=1)


def methods() -> dict[str, Parts]:
    return {
        "model": Parts(TARGET, DraftModel(DRAFT), Rejection(), Fixed(3)),
        "lookup": Parts(TARGET, NGram(2, allow_shorter=True), Rejection(), Fixed(5)),
        "none": Parts(TARGET, NoDraft(), Rejection(), Fixed(0)),
    }


def request(prompt: list[int], *, seed: int = 0, max_tokens: int = 20, **options: Any) -> GenerationRequest:
    chosen = {name: options.pop(name) for name in ("temperature", "logit_bias") if name in options}
    settings = resolve_settings({"max_tokens": max_tokens, **chosen}, vocab=VOCAB)
    return GenerationRequest(prompt, settings, 1000, seed, **options)


def alone(given: GenerationRequest, parts: Parts | None = None) -> list[int]:
    """The output of a session with this request only, under the method and the depth that it names, or with
    these parts."""
    if parts is None:
        parts = methods()[given.method or "model"]
    if given.max_draft_depth is not None:
        parts = replace(parts, controller=Fixed(min(given.max_draft_depth, 3)))
    params = given.settings.row_params(given.seed, given.max_new_tokens)
    session = Session(parts, [torch.tensor(given.prompt)], [params], LazyTargetProbs)
    list(session.steps())
    return session.request(0).output()


def mixed(seed: int, count: int = 14) -> list[GenerationRequest]:
    choice = random.Random(seed)
    return [
        request(
            [choice.randrange(VOCAB) for _ in range(choice.choice((1, 2, 7, 30)))],
            seed=index,
            max_tokens=choice.randint(1, 40),
            temperature=choice.choice((0.0, 0.0, 1.0)),
            method=choice.choice((None, "lookup", "none")),
            max_draft_depth=choice.choice((None, None, 0, 1)),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("prompt_tokens", [4, PROMPT_TOKENS])
@pytest.mark.parametrize("kv_bytes", [None, 3 * (70 + DRAFT_MARGIN)])
def test_every_request_gets_the_text_that_it_gets_alone(kv_bytes: int | None, prompt_tokens: int) -> None:
    preemptions = 0
    for seed in range(4):
        scheduler = Scheduler(methods(), max_rows=5, kv_bytes=kv_bytes, prompt_tokens=prompt_tokens)
        clients = [Client(scheduler, each) for each in mixed(seed)]
        held = run(scheduler)
        for client in clients:
            expected = alone(client.request)
            assert client.tokens == client.result.tokens == expected
            assert client.result.finish_reason == "length"
        assert kv_bytes is None or max(held) <= kv_bytes
        preemptions += scheduler.num_preemptions
    assert bool(preemptions) == (kv_bytes is not None)


@pytest.mark.parametrize("kv_bytes", [None, 2 * (70 + DRAFT_MARGIN)])
def test_a_method_that_drafts_beside_the_target_gets_its_draft_after_every_token(
    kv_bytes: int | None,
) -> None:
    parts = get("speculative-cascades").build(TARGET, draft=DRAFT, depth=3)
    scheduler = Scheduler({"cascades": parts}, max_rows=5, kv_bytes=kv_bytes, prompt_tokens=4)
    clients = [
        Client(scheduler, replace(each, method=None, max_draft_depth=index % 3))
        for index, each in enumerate(mixed(3))
    ]
    run(scheduler)
    assert not scheduler.num_drafter_errors and bool(scheduler.num_preemptions) == (kv_bytes is not None)
    for client in clients:
        own = get("speculative-cascades").build(TARGET, draft=DRAFT)
        assert client.tokens == alone(client.request, own)


def test_requests_end_in_the_order_in_which_they_came_although_some_wait_again() -> None:
    scheduler = Scheduler(methods(), kv_bytes=3 * (16 + DRAFT_MARGIN))
    clients = [Client(scheduler, request([index], max_tokens=40, method="none")) for index in range(6)]
    ended: list[Client] = []

    def note(step: int) -> None:
        done = [client for client in clients if client.events and isinstance(client.events[-1], Finished)]
        ended.extend(client for client in done if client not in ended)

    run(scheduler, note)
    # the last that joined leaves when memory runs short, and goes on before those that have not begun
    assert ended == clients and scheduler.num_preemptions


def test_cancelled_requests_leave_at_once_and_disturb_nobody() -> None:
    scheduler = Scheduler(methods(), max_rows=4)
    clients = [Client(scheduler, each) for each in mixed(9)]
    cancelled = [clients[1], clients[5], clients[12]]

    def cancel(step: int) -> None:
        if step == 4:
            for client in cancelled:
                scheduler.cancel(client.ticket)
                scheduler.cancel(client.ticket)  # a second time has no effect

    run(scheduler, cancel)
    for client in clients:
        expected = alone(client.request)
        if client in cancelled and len(client.tokens) < len(expected):
            assert client.result.finish_reason is None
            expected = expected[: len(client.tokens)]
        assert client.tokens == expected
        assert sum(isinstance(event, Finished) for event in client.events) == 1
    assert any(client.result.finish_reason is None for client in cancelled)


def test_a_request_that_excludes_every_token_fails_alone() -> None:
    scheduler = Scheduler(methods())
    nothing = {token: float("-inf") for token in range(VOCAB)}
    bad = Client(scheduler, request([1, 2], logit_bias=nothing))
    good = [Client(scheduler, each) for each in mixed(3, 5)]
    run(scheduler)
    assert isinstance(last := bad.events[-1], Failed)
    assert not last.is_fault_of_server and "leave no token" in last.reason
    for client in good:
        assert client.tokens == alone(client.request)


class Broken(DraftModel):
    """A draft model that raises for requests whose text begins with token 0."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        if any(int(tokens[0]) == 0 and len(tokens) > 8 for tokens in ctx.tokens):
            raise RuntimeError("broken")
        return super().propose(ctx, plan)


def test_a_drafter_that_raises_ends_the_drafts_of_one_request_only(caplog: pytest.LogCaptureFixture) -> None:
    steps: list[list[int]] = []
    for drafter in (DraftModel(DRAFT), Broken(DRAFT)):
        scheduler = Scheduler({"model": Parts(TARGET, drafter, Rejection(), Fixed(3))})
        clients = [Client(scheduler, request([begin, 3], max_tokens=40)) for begin in range(3)]
        run(scheduler)
        for client in clients:
            assert client.tokens == alone(client.request)  # greedy: the same text without drafts
        steps.append([client.result.statistics.num_steps for client in clients])
    assert scheduler.num_drafter_errors == 1 and "broken" in caplog.text
    assert steps[1][0] > steps[0][0] and steps[1][1:] == steps[0][1:]


class Unreleasable(DraftModel):
    """A draft model that raises, once or always, when a request that begins with token 0 is released."""

    def __init__(self, *, once: bool) -> None:
        super().__init__(TableTarget(VOCAB, seed=2, order=1))  # `DRAFT`, but other tests count its memory
        self._once, self._held = once, set[int]()

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        pairs = zip(ctx.slots, ctx.tokens, strict=True)
        self._held.update(slot for slot, tokens in pairs if int(tokens[0]) == 0)
        return super().propose(ctx, plan)

    def release(self, slots: Sequence[int]) -> None:
        if held := self._held.intersection(slots):
            self._held -= held if self._once else set()
            raise RuntimeError("broken")
        super().release(slots)


class Released(NoDraft):
    """Records the slots that are released."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: list[int] = []

    def release(self, slots: Sequence[int]) -> None:
        self.slots += slots


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("once", [True, False])
def test_a_failing_release_ends_no_request(
    once: bool, cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    other = Released()
    parts = {
        "model": Parts(TARGET, Unreleasable(once=once), Rejection(), Fixed(3)),
        "other": Parts(TARGET, other, Rejection(), Fixed(0)),
    }
    scheduler = Scheduler(parts, max_rows=2)
    bad = Client(scheduler, request([0, 3], max_tokens=12))
    good = [Client(scheduler, request([begin, 3], max_tokens=40)) for begin in (1, 2)]
    for _ in range(2):
        scheduler.step()
    if cancelled:
        scheduler.cancel(bad.ticket)
    run(scheduler)
    assert bad.result.finish_reason == (None if cancelled else "length")
    assert "broken" in caplog.text and scheduler.num_drafter_errors >= 1 and 0 in other.slots
    for client in good:
        assert client.tokens == alone(client.request)
    # the last joins in the slot of the first: without drafts where that is not released
    num_steps = [client.result.statistics.num_steps for client in good]
    assert num_steps[0] < 40 and (num_steps[1] < 40) == once


def test_any_other_exception_fails_what_is_being_decoded_and_the_next_request_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler(methods(), max_rows=2)
    clients = [Client(scheduler, request([index], max_tokens=9)) for index in range(3)]
    scheduler.step()
    with monkeypatch.context() as patch:
        patch.setattr(TARGET, "score", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            scheduler.step()
    run(scheduler)
    for client in clients[:2]:
        assert isinstance(last := client.events[-1], Failed) and last.is_fault_of_server
        assert last.result is not None and last.result.tokens == client.tokens
    assert clients[2].tokens == alone(clients[2].request)


def test_a_request_that_cannot_join_fails_alone() -> None:
    scheduler = Scheduler(methods(), max_rows=2)
    clients = [Client(scheduler, request([index], max_tokens=9)) for index in range(2)]
    lost = Client(scheduler, request([3], method="unknown"))
    with pytest.raises(KeyError):
        run(scheduler)
    run(scheduler)
    assert isinstance(last := lost.events[-1], Failed) and last.is_fault_of_server
    for client in clients:
        assert client.tokens == alone(client.request)


def test_an_output_that_cannot_be_passed_on_ends_its_request_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for at in (3, 9):  # during the request, and at its end
        scheduler = Scheduler(methods())
        clients = [Client(scheduler, request([index], max_tokens=9)) for index in range(2)]
        bad = Client(scheduler, request([5], max_tokens=9, method="none"))

        def broken(*arguments: Any, at: int = at, bad: Client = bad, **options: Any) -> Piece:
            if len(bad.tokens) == at - 1:
                raise RuntimeError("broken")
            return RowOutput.add(bad.ticket.output, *arguments, **options)

        vars(bad.ticket.output)["add"] = broken
        run(scheduler)
        assert isinstance(last := bad.events[-1], Failed) and last.is_fault_of_server
        assert len(bad.tokens) == at - 1 and "broken" in caplog.text
        for client in clients:
            assert client.tokens == alone(client.request)


def test_a_prompt_that_never_fits_is_refused_and_an_answer_that_does_not_is_cut() -> None:
    scheduler = Scheduler(methods(), kv_bytes=DRAFT_MARGIN + 20)
    long, growing = request([1] * 30), request([1] * 10, max_tokens=40)
    refused, cut = Client(scheduler, long), Client(scheduler, growing)
    run(scheduler)
    assert isinstance(last := refused.events[-1], Failed) and "30 tokens does not fit" in last.reason
    assert not last.is_fault_of_server
    assert cut.result.finish_reason == "length" and 5 <= len(cut.tokens) < 40
    assert cut.tokens == alone(growing)[: len(cut.tokens)]


def test_memory_that_holds_no_prompt_is_refused_with_the_least_size() -> None:
    drafts = [TableTarget(8, seed=1)]
    with pytest.raises(ValueError, match="^64 bytes .* hold no prompt.*: give at least 1KiB$"):
        Scheduler(methods(), kv_bytes=DRAFT_MARGIN)
    with pytest.raises(ValueError, match="give at least"):
        Scheduler(methods(), kv_bytes=DRAFT_MARGIN + 1, drafts=drafts)
    scheduler = Scheduler(methods(), kv_bytes=DRAFT_MARGIN + 1)
    client = Client(scheduler, request([1], max_tokens=1))
    run(scheduler)
    assert len(client.tokens) == 1


def test_a_prediction_is_drafted_unless_speculation_is_off() -> None:
    expected = alone(request([3], max_tokens=40))
    found: Mapping[int | None, list[int]] = {depth: [] for depth in (None, 0)}
    for depth, steps in found.items():
        scheduler = Scheduler(methods())
        given = request([3], max_tokens=40, prediction=expected, max_draft_depth=depth, method="none")
        client = Client(scheduler, given)
        steps.append(len(run(scheduler)))
        assert client.tokens == expected
        accepted = client.result.statistics.num_accepted_prediction_tokens
        assert accepted == 0 if depth == 0 else accepted > 30
    assert found[None][0] < 8 and found[0] == [40]


def test_the_memory_of_draft_models_counts_and_is_freed() -> None:
    kv_bytes = 2 * 3 * (70 + DRAFT_MARGIN)
    preemptions, drafted = 0, 0
    for seed in range(4):
        scheduler = Scheduler(methods(), drafts=[DRAFT], max_rows=5, kv_bytes=kv_bytes)
        clients = [Client(scheduler, each) for each in mixed(seed)]
        before = 0

        def check(step: int, scheduler: Scheduler = scheduler) -> None:
            nonlocal before, drafted
            assert scheduler.num_bytes + scheduler.draft_bytes <= kv_bytes
            drafted = max(drafted, scheduler.draft_bytes)
            if scheduler.num_preemptions > before:
                before = scheduler.num_preemptions
                held = {slot for cache in DRAFT.caches for slot, num in enumerate(cache.lengths) if num}
                assert held <= set(scheduler.running)

        run(scheduler, check)
        assert scheduler.draft_bytes == 0
        for client in clients:
            assert client.tokens == alone(client.request)
        preemptions += scheduler.num_preemptions
    assert preemptions and drafted


def test_a_request_that_was_preempted_is_learnt_once() -> None:
    past = PastRequests()
    parts = Parts(TARGET, Retrieval(past), Match(), Fixed(2))
    scheduler = Scheduler({"rest": parts}, max_rows=5, kv_bytes=3 * (70 + DRAFT_MARGIN))
    clients = [Client(scheduler, replace(each, method=None)) for each in mixed(2)]
    run(scheduler)
    assert scheduler.num_preemptions
    assert len(past) == sum(len(each.request.prompt) + len(each.tokens) for each in clients)


def test_requests_that_find_a_free_row_do_not_count_as_waiting() -> None:
    engine = EngineThread(Scheduler(methods(), max_rows=2), None, max_waiting=1)
    results: list[str] = []
    for _ in range(3):  # two begin at once, one waits
        engine.submit(request([1], max_tokens=3), lambda event: results.append(type(event).__name__))
    with pytest.raises(QueueFull):
        engine.submit(request([1]), lambda event: None)
    engine.start()
    assert engine.close(timeout=60)
    assert results.count("Finished") == 3


def test_closing_does_not_wait_longer_than_told_for_a_step_that_does_not_end() -> None:
    began, goes_on = Event(), Event()

    class Blocked(Fixed):
        def plan(self, ctx: Context) -> Plan:
            began.set()
            goes_on.wait(60)
            return super().plan(ctx)

    parts = Parts(TARGET, NoDraft(), Rejection(), Blocked(0))
    engine = EngineThread(Scheduler({"none": parts}, max_rows=2), None)
    results: list[str] = []
    engine.submit(request([1], max_tokens=2), lambda event: results.append(type(event).__name__))
    engine.start()
    assert began.wait(60)
    assert not engine.close(drain=False, timeout=0.05)
    goes_on.set()
    assert engine.close(timeout=60) and results[-1] == "Finished"
