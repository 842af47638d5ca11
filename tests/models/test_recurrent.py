"""The states of recurrent layers follow the committed tokens, whatever was drafted and discarded."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.api.settings import resolve_settings
from outpace.core.contracts import NOTHING, Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.decode import Session
from outpace.models.eager.recurrent_cache import RecurrentCache
from outpace.models.hf.target import HFTarget
from outpace.proof.models import FLOAT32_BOUND, RECURRENT_CODES, Models, RecurrentCode, recurrent_models
from outpace.proof.mutants.recurrent_path import by_chain, by_levels, by_long_chain, recurrent_mutants
from outpace.proof.mutants.transformers_path import TransformersMutant, by_draft_model, decoding_error
from outpace.proof.suite import CAUGHT, prove_default
from outpace.recipes import get, names
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.serving.request import GenerationRequest
from outpace.serving.scheduler import Scheduler
from tests.serving.clients import Client
from tests.tiers import WITHOUT_MODELS, only, slow, with_parts_of_their_own

MUTANTS: dict[str, tuple[RecurrentCode, TransformersMutant]] = {
    mutant.name: (code, mutant) for code in RECURRENT_CODES for mutant in recurrent_mutants(code)
}
MEET_MODELS = [name for name in with_parts_of_their_own(names()) if name not in WITHOUT_MODELS]
# methods that skip layers, leave them early or run them in another order
BY_LAYERS = {
    *("clasp", "del-decoding", "easyspec", "kangaroo", "knn-ssd"),
    *("layerskip", "mirror-sd", "quicksilver", "s2d", "specee", "swift"),
}
# methods whose draft model reads blocks of which each token sees all, and it is recurrent here
BY_BLOCKS = {"dultra", "specdiff"}


def chain(tokens: Sequence[int]) -> TokenTree:
    return TokenTree(torch.tensor(tokens), Forest.chain((len(tokens) - 1,)))


@cache
def models() -> Models:
    return recurrent_models()


@pytest.mark.parametrize("name", only({"speculative-sampling", "medusa"}, MEET_MODELS))
def test_methods_are_exact_or_refuse_such_models_in_a_sentence(name: str) -> None:
    if name in BY_LAYERS:
        with pytest.raises(ValueError, match="has recurrent layers, which cannot be (skipped|grouped)"):
            prove_default(get(name), models(), 150)
    elif name in BY_BLOCKS:
        with pytest.raises(ValueError, match="reads tokens in order, and masks of a window"):
            prove_default(get(name), models(), 150)
    else:
        proof = prove_default(get(name), models(), 150)
        assert proof.error is not None and proof.error <= FLOAT32_BOUND
        # the n-grams of lookahead's window occur in longer texts only
        assert proof.accepted > 10 or not proof.allowed or name == "lookahead"


@pytest.mark.parametrize("name", only({"states before the draft"}, MUTANTS))
def test_a_planted_mistake_is_caught(name: str) -> None:
    code, mutant = MUTANTS[name]
    assert mutant.error(recurrent_models(code)) > CAUGHT


@pytest.mark.slow
@pytest.mark.parametrize("code", RECURRENT_CODES)
@pytest.mark.parametrize("drafting", [by_chain, by_long_chain, by_levels, by_draft_model])
def test_without_a_mistake_the_distribution_is_plain_decoding(
    code: RecurrentCode, drafting: Callable[[Models], Parts]
) -> None:
    assert decoding_error(recurrent_models(code), drafting) <= FLOAT32_BOUND


def run(parts: Parts, prompts: Sequence[Tensor], tokens: int) -> tuple[list[list[int]], list[Step]]:
    params = SamplingParams(max_tokens=tokens)
    session = Session(parts, prompts, [params] * len(prompts), LazyTargetProbs)
    steps = list(session.steps())
    return [list(session.request(row).output()) for row in range(len(prompts))], steps


@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2", slow("falcon_h1"), slow("mamba2")])
def test_greedy_texts_are_those_of_transformers(name: str, tiny: Any, float64_throughout: None) -> None:
    """The draft is a copy of the target with a little noise, so that drafts are accepted in part."""
    model = tiny(name)
    noisy = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in noisy.parameters():
            parameter += 0.03 * parameter.std() * torch.randn(parameter.shape, dtype=parameter.dtype)
    prompts = [torch.arange(3, 3 + size) * 7 % 61 for size in (9, 2, 30)]
    expected = [
        model.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt)[None],
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    parts = get("speculative-sampling").build(HFTarget(model), draft=HFTarget(noisy), depth=4)
    texts, steps = run(parts, prompts, 40)
    assert texts == expected
    lengths = {len(tokens) for step in steps for tokens in step.generated}
    assert lengths >= {1, 3, 5}, "all, some and none of the draft tokens were accepted"


def test_states_are_read_again_after_a_gap_of_which_a_draft_kept_nothing(
    tiny: Any, float64_throughout: None
) -> None:
    """As in a draft model of whose last draft, of several levels, no token was committed."""
    model = tiny("qwen3_5_text")
    text = torch.arange(3, 20)
    with torch.no_grad():
        expected = model(text[None], use_cache=False).logits[0, -1]
    target = HFTarget(model)
    cache = target.open(1, 32)
    first = chain([int(text[9])])
    target.score(first, (0,), cache, gap=[text[:9]])
    target.score(chain([int(text[9]), 50]), (0,), cache)  # a second level
    cache.commit(first, [-1], (0,))
    assert cache.lengths == [9]
    logits = target.score(chain(text[9:].tolist()), (0,), cache).logits
    assert float((logits[-1] - expected).abs().max()) < 1e-9


def test_a_slot_starts_anew_after_its_release(tiny: Any, float64_throughout: None) -> None:
    target = HFTarget(tiny("qwen3_5_text"))
    cache = target.open(1, 16)
    expected = target.score(text := chain([5, 6, 7]), (0,), cache).logits
    cache.commit(text, [2], (0,))
    cache.release((0,))
    assert torch.equal(target.score(chain([5, 6, 7]), (0,), cache).logits, expected)


def test_the_memory_of_states_is_counted(tiny: Any, float64_throughout: None) -> None:
    target = HFTarget(tiny("qwen3_5_text"))
    cache = target.open(2, 16)
    assert isinstance(cache, RecurrentCache) and cache.num_bytes == 0
    target.score(chain([5, 6, 7]), (0,), cache)
    # before and after a forward, float64: (4, 8, 8) of linear attention, and 4 inputs of a convolution over
    # 64 channels
    states = 2 * 8 * (4 * 8 * 8 + 64 * 4)
    assert cache.num_bytes == 16 * target.token_bytes + states
    assert cache.slot_bytes(1, 5) == cache.num_bytes
    cache.release((0,))
    assert cache.num_bytes == 0


def test_retained_texts_leave_room_for_the_states_of_others(tiny: Any, float64_throughout: None) -> None:
    target = HFTarget(tiny("qwen3_5_text"))
    cache = target.open(2, 16)
    assert isinstance(cache, RecurrentCache)
    for slot in (0, 1):
        target.score(text := chain([5, 6, 7]), (slot,), cache)
        cache.commit(text, [2], (slot,))
    cache.name(0, text.tokens)
    cache.release((0,))
    held = cache.num_bytes + cache.retained_bytes
    cache.limit(held)
    assert cache.retained_bytes
    cache.limit(held - target.token_bytes)
    assert not cache.retained_bytes


def test_states_count_in_the_memory_limit_of_a_server(tiny: Any) -> None:
    model = tiny("mamba2").float()
    target, draft = HFTarget(model).on_demand(), HFTarget(model).on_demand()
    methods = {"model": get("speculative-sampling").build(target, draft=draft, depth=1)}
    each = target.state_bytes + draft.state_bytes
    assert each
    with pytest.raises(ValueError, match="hold no prompt, not even one of one token"):
        Scheduler(methods, drafts=[draft], kv_bytes=each - 1)
    scheduler = Scheduler(methods, drafts=[draft], kv_bytes=4 * each)
    settings = resolve_settings({"max_tokens": 6}, vocab=61)
    clients = [Client(scheduler, GenerationRequest([5, 6, 7], settings, 20, seed)) for seed in range(6)]
    most = 0
    while scheduler.waiting or scheduler.running:
        scheduler.step()
        most = max(most, scheduler.num_bytes + scheduler.draft_bytes)
    assert all(len(client.tokens) == 6 for client in clients)
    assert 2 * each < most <= 4 * each


@pytest.mark.parametrize("name", ["qwen3_5_text", "falcon_h1"])
def test_the_next_turn_of_a_chat_begins_with_the_states_of_the_last(
    name: str, tiny: Any, float64_throughout: None
) -> None:
    model = tiny(name)
    parts = get("prompt-lookup").build(HFTarget(model))
    prompt = torch.arange(3, 20) % 7 + 3

    def answer(session: Session, prompt: Tensor) -> tuple[list[int], int]:
        slot = session.add(prompt, SamplingParams(max_tokens=12))
        read = sum(len(each) for step in session.steps() for each in step.ctx.unread or ())
        return list(session.request(slot).output()), read

    session = Session(parts, [], [], LazyTargetProbs, size=(1, 80))
    assert isinstance(session.cache, RecurrentCache)
    session.batch.prefix_cache = session.cache
    first, read = answer(session, prompt)
    assert read == len(prompt) - 1
    following = torch.cat((prompt, torch.tensor([*first, 9, 8, 7])))
    second, read = answer(session, following)
    assert 3 <= read < 20, "all but the tokens of the last forward and the new ones were known"
    fresh = Session(parts, [following], [SamplingParams(max_tokens=12)], LazyTargetProbs)
    list(fresh.steps())
    assert second == list(fresh.request(0).output())
    other, read = answer(session, following[1:])
    assert read == len(following) - 2, "a text that does not continue another one to its end is read whole"
    # memory of retained texts counts their states, and is limited
    states = session.cache._final_states[session.cache._retained[-1]].num_bytes
    assert session.cache.retained_bytes >= states + session.cache.planes.token_bytes
    session.cache.limit(0)
    assert session.cache.retained_bytes == 0


def test_closing_a_cache_frees_its_memory_at_once(tiny: Any) -> None:
    target = HFTarget(tiny("qwen3_5_text"))
    cache = target.open(1, 16)
    target.score(chain([5, 6, 7]), (0,), cache)
    found = weakref.ref(cache)
    gc.disable()
    try:
        del cache
        assert found() is None
    finally:
        gc.enable()


def test_what_recurrent_layers_received_is_freed_at_once(tiny: Any) -> None:
    target = HFTarget(tiny("qwen3_5_text"))
    cache = target.open(1, 16)
    draft = chain([5, 6, 7, 8])
    gc.collect()
    gc.disable()
    try:
        target.score(draft, (0,), cache)
        cache.commit(draft, [1], (0,))
        target.score(chain([9]), (0,), cache)  # reads two tokens again
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_compiling_falls_back_to_eager_forwards_with_a_warning(tiny: Any) -> None:
    with pytest.warns(UserWarning, match="recurrent layers, which are not compiled yet: it runs eagerly"):
        target = HFTarget(tiny("qwen3_5_text").float(), compile=True)
    assert target.compiled is None and not target.sizes
    logits = target.score(chain([5, 6, 7]), (0,), target.open(1, 16), NOTHING).logits
    assert logits is not None and len(logits) == 3
