"""Requests that take over KV entries of others get the text that they get without the prefix cache."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outpace.api.settings import resolve_settings
from outpace.controllers.fixed import Fixed
from outpace.core.batch import Batch
from outpace.core.contracts import Parts
from outpace.drafters.lookup.past_requests import PastRequests
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import grow
from outpace.drafters.model.position_drafter import PositionDrafter
from outpace.drafters.no_draft import NoDraft
from outpace.models.heads.medusa.head import untrained_medusa
from outpace.models.hf.target import HFTarget
from outpace.recipes import get
from outpace.recipes.training_free.rest import Retrieval
from outpace.serving.request import GenerationRequest
from outpace.serving.scheduler import Scheduler
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection
from tests.serving.clients import Client, run
from tests.tiers import slow

VOCAB = 40


SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def model(layers: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    limits = {"vocab_size": VOCAB, "max_position_embeddings": 1024, "initializer_range": 0.6}
    config = LlamaConfig(num_hidden_layers=layers, **SIZES, **limits, **NO_TOKENS)
    return LlamaForCausalLM(config).double().eval()


TARGET, DRAFT = HFTarget(model(2, 1)), HFTarget(model(1, 2))
TOKEN_BYTES = TARGET.token_bytes


@pytest.fixture(scope="module")
def compiled() -> HFTarget:
    return HFTarget(model(2, 1).float(), compile=True)


def methods(target: HFTarget = TARGET) -> dict[str, Parts]:
    found = {"none": Parts(target, NoDraft(), Rejection(), Fixed(0))}
    if target is TARGET:
        found["model"] = Parts(target, DraftModel(DRAFT), Rejection(), Fixed(3))
        # heads that read hidden states at drafts only
        heads = PositionDrafter(untrained_medusa(target, seed=1), grow, sampled=True)
        found["heads"] = Parts(target, heads, Rejection(), Fixed(3))
    return found


def request(prompt: Sequence[int], seed: int = 0, max_tokens: int = 20, **given: Any) -> GenerationRequest:
    chosen = {name: given.pop(name) for name in ("temperature",) if name in given}
    settings = resolve_settings({"max_tokens": max_tokens, **chosen}, vocab=VOCAB)
    return GenerationRequest(list(prompt), settings, 1000, seed, **given)


def some(length: int, seed: int) -> list[int]:
    choice = random.Random(seed)
    return [choice.randrange(VOCAB) for _ in range(length)]


def first_turns(count: int = 10) -> list[list[int]]:
    """Prompts that begin with 0 to 90 tokens of one text."""
    choice, text = random.Random(1), some(90, 0)
    return [
        text[: choice.choice((0, 5, 33, 64, 90))] + some(choice.randrange(1, 40), n) for n in range(count)
    ]


def converse(scheduler: Scheduler, turns: int = 3, **options: Any) -> list[list[int]]:
    """The outputs of conversations: each turn is the text so far and some new tokens."""
    prompts, outputs = first_turns(), list[list[int]]()
    names = [None, *scheduler._routes._methods]
    for turn in range(turns):
        clients = [
            Client(
                scheduler,
                request(prompt, n, method=names[n % len(names)], temperature=(0.0, 0.7)[n % 2], **options),
            )
            for n, prompt in enumerate(prompts)
        ]
        run(scheduler)
        outputs += [client.tokens for client in clients]
        prompts = [
            [*prompt, *client.tokens, *some(n % 4 + 1, turn)]
            for n, (prompt, client) in enumerate(zip(prompts, clients, strict=True))
        ]
    return outputs


def test_texts_are_those_without_the_prefix_cache() -> None:
    without = Scheduler(methods(), prefix_cache=False, max_rows=4)
    expected = converse(without)
    assert without.num_queried_tokens == without.retained_bytes == 0
    scheduler = Scheduler(methods(), max_rows=4)
    assert converse(scheduler) == expected
    assert scheduler.num_bytes == 0 and scheduler.retained_bytes > 0
    assert scheduler.num_cached_tokens > 0.7 * scheduler.num_queried_tokens


def test_so_they_are_with_compiled_forwards(compiled: HFTarget) -> None:
    expected = converse(Scheduler(methods(compiled), prefix_cache=False, max_rows=4))
    scheduler = Scheduler(methods(compiled), max_rows=4)
    assert converse(scheduler) == expected
    assert scheduler.num_bytes == 0 and scheduler.retained_bytes > 0
    assert scheduler.num_cached_tokens > 0.4 * scheduler.num_queried_tokens  # blocks that are full


@pytest.fixture(params=("eager", slow("compiled")))
def target(request: pytest.FixtureRequest) -> HFTarget:
    return TARGET if request.param == "eager" else request.getfixturevalue("compiled")


def restored(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Tokens of each text that joins, and those of them that were taken over."""
    found: list[tuple[int, int]] = []
    cache: Any = scheduler._session.cache
    inner: Callable[..., int] = cache.restore

    def restore(slot: int, tokens: torch.Tensor) -> int:
        found.append((len(tokens), inner(slot, tokens)))
        return found[-1][1]

    monkeypatch.setattr(cache, "restore", restore)
    return found


def test_within_a_small_budget_requests_are_preempted_and_go_on_with_what_is_left(
    target: HFTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv_bytes = target.token_bytes * (1550 if target is TARGET else 700)
    prompts = [some(40, 0) + some(30, n) for n in range(8)]
    expected: list[list[int]] = []
    for prefix_cache in (False, True):
        parts = {"none": methods(target)["none"]}
        scheduler = Scheduler(parts, kv_bytes=kv_bytes, prefix_cache=prefix_cache)
        joined = restored(scheduler, monkeypatch)
        clients = [Client(scheduler, request(each, max_tokens=180)) for each in prompts]

        def check(step: int, scheduler: Scheduler = scheduler) -> None:
            assert scheduler.num_bytes + scheduler.retained_bytes <= kv_bytes

        run(scheduler, check)
        assert scheduler.num_preemptions
        expected = expected or [client.tokens for client in clients]
        assert [client.tokens for client in clients] == expected
    assert scheduler.num_queried_tokens == sum(map(len, prompts))  # not again where a request goes on
    again = [found for length, found in joined if length > 69]
    assert len(again) == scheduler.num_preemptions and max(again) > 70


@pytest.mark.slow
def test_with_a_budget_for_drafts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = converse(Scheduler(methods(), prefix_cache=False))
    kv_bytes = 1400 * (TOKEN_BYTES + DRAFT.token_bytes)
    scheduler = Scheduler(methods(), drafts=[DRAFT], kv_bytes=kv_bytes)
    inner = scheduler.step

    def step() -> Any:
        found = inner()
        assert scheduler.num_bytes + scheduler.retained_bytes + scheduler.draft_bytes <= kv_bytes
        return found

    monkeypatch.setattr(scheduler, "step", step)
    assert converse(scheduler) == expected
    assert scheduler.num_cached_tokens and scheduler.draft_bytes == 0


def test_a_cancelled_request_leaves_others_what_they_share(target: HFTarget) -> None:
    prompts = [some(90, 0) + some(5, n) for n in range(4)]
    for prefix_cache in (False, True):
        scheduler = Scheduler(methods(target), prefix_cache=prefix_cache)
        clients = [Client(scheduler, request(prompts[0], max_tokens=60))]
        for _ in range(3):
            scheduler.step()
        clients += [Client(scheduler, request(each, max_tokens=40)) for each in prompts[1:]]
        for _ in range(3):
            scheduler.step()
        scheduler.cancel(clients[0].ticket)
        late = Client(scheduler, request(prompts[0], max_tokens=60))  # in the slot of the cancelled one
        run(scheduler)
        found = [client.tokens for client in (*clients[1:], late)]
        if not prefix_cache:
            expected = found
        assert found == expected and clients[0].tokens == late.tokens[: len(clients[0].tokens)]
    assert scheduler.num_cached_tokens >= 4 * 64


def test_prompts_are_read_as_a_whole_where_a_method_needs_the_targets_outputs_at_them() -> None:
    prompt = some(60, 1)
    parts = get("token-recycling").build(TARGET, learn_from_prompts=True)
    scheduler = Scheduler({"token-recycling": parts})
    for _ in range(2):
        client = Client(scheduler, request(prompt))
        read = 0
        while scheduler.waiting or scheduler.running:
            step = scheduler.step()
            if step is not None and not step.generated[0]:
                read += len(step.draft.tree)
        assert read == len(prompt) - 1 and client.tokens
    assert scheduler.num_queried_tokens == scheduler.retained_bytes == 0
    assert client.result.statistics.num_cached_tokens == 0


def test_methods_that_learn_from_texts_learn_the_whole_text() -> None:
    past = PastRequests()
    scheduler = Scheduler({"rest": Parts(TARGET, Retrieval(past), Match(), Fixed(2))})
    clients = []
    for _ in range(3):
        clients.append(Client(scheduler, request(some(60, 1))))
        run(scheduler)
    assert [each.result.statistics.num_cached_tokens for each in clients] == [0, 59, 59]
    assert len(past) == sum(len(each.request.prompt) + len(each.tokens) for each in clients)


def test_without_a_budget_what_ended_requests_retain_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 5 * 300 * TOKEN_BYTES
    monkeypatch.setattr("outpace.serving.scheduler.RETAINED_BYTES", most)
    scheduler = Scheduler(methods())
    for n in range(40):
        Client(scheduler, request(some(30, n), max_tokens=3))
        run(scheduler, lambda step: None)
        assert scheduler.retained_bytes <= most + 300 * TOKEN_BYTES
    assert scheduler.retained_bytes > most / 2


class NamesTheUnread(Batch):
    """Mutant: the last token of a text, which the target has not read, is taken to be in the KV cache."""

    def _name(self, slots: Sequence[int]) -> None:
        if self.prefix_cache is not None:
            for slot in slots:
                self.prefix_cache.name(slot, self.requests[slot].text())


@pytest.mark.slow
def test_entries_that_do_not_exist_are_found_by_these_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.decode.Batch", NamesTheUnread)
    with pytest.raises((AssertionError, ValueError)):  # other texts, or entries without memory
        test_texts_are_those_without_the_prefix_cache()
