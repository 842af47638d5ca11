"""Mirror-SD: texts are plain decoding's, mistakes are caught, what is drafted at once is what a draft model
drafts for each continuation alone, and more of it is used with more candidates and a later exit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from time import sleep
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import outpace
from outpace.core.context import Context
from outpace.core.contracts import Plan, Scores, Step
from outpace.core.noise import KeyedNoise
from outpace.core.request_state import RequestState
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.engine.engine import Engine
from outpace.models.eager.cache_view import EagerView
from outpace.models.eager.forward import Forward, ForwardAfter
from outpace.models.forward.kv_cache import SlotCache
from outpace.models.hf.target import HFTarget
from outpace.models.slim.slim_table import TableView
from outpace.models.slim.slim_target import SlimTarget
from outpace.models.table import TableCache, TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, Leak, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.suite import CAUGHT
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.overlap.mirror_sd import two_rendezvous
from outpace.recipes.overlap.mirror_sd.keys import stem_of_keys
from outpace.recipes.overlap.mirror_sd.recipe import first_layers, mirror_sd
from outpace.recipes.overlap.mirror_sd.two_rendezvous import TwoRendezvous
from tests.llama import llama_config
from tests.tiers import only, slow

CASES = [
    Case((0, 1, 0), SamplingParams(1.0, max_tokens=5)),
    Case((1,), SamplingParams(0.7, max_tokens=3, stop=(1,))),
]
MODELS = tables(2)
KINDS = ("table", "transformers")


def built(models: Models = MODELS, **options: Any) -> Any:
    return mirror_sd.build(models.target, draft=models.drafts[0], **{"depth": 3, "overlap": False} | options)


def error() -> float:
    try:
        found = enumerate_distributions(built, CASES)
    except (Leak, AssertionError):  # a run ends otherwise alone than in a batch; the cache is used wrongly
        return 1.0
    assert found.counts.accepted and found.counts.deepest >= 2
    return largest_error(found, MODELS.logits, CASES)


def test_the_distribution_is_the_target_s() -> None:
    assert error() < 1e-12


def test_a_continuation_of_another_key_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_any_key(session: Any, draft: TokenTree, step: Step) -> dict[RequestState, TokenTree]:
        first = draft.forest.children
        return {
            session.request(slot): draft.below([first[row][0]])
            for row, slot in enumerate(step.ctx.slots)
            if row not in step.finished and first[row] and first[first[row][0]]
        }

    monkeypatch.setattr(two_rendezvous, "left_below", of_any_key)
    assert error() > CAUGHT


@pytest.mark.parametrize("kind", KINDS)
def test_entries_of_the_first_layers_left_for_rejected_tokens_are_caught(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    read_first = TwoRendezvous._read_first

    def with_entries(self: TwoRendezvous, ctx: Context, tree: TokenTree, view: Any) -> Any:
        found = read_first(self, ctx, tree, view)
        if len(tree) > len(ctx.slots):
            commit = TableCache.commit if isinstance(view, TableView) else SlotCache.commit
            assert isinstance(view, TableView | EagerView)
            commit(view, tree, [nodes[-1] for nodes in tree.forest.nodes], ctx.slots)
        return found

    models = MODELS if kind == "table" else transformers_models()
    sampling = [SamplingParams(1.0, max_tokens=20)]
    plain = texts(autoregressive.build(models.target), [[1, 0]], sampling)
    assert texts(built(models), [[1, 0]], sampling) == plain
    monkeypatch.setattr(TwoRendezvous, "_read_first", with_entries)
    try:
        assert texts(built(models), [[1, 0]], sampling) != plain
    except AssertionError:
        assert kind == "table"  # its cache notices


@pytest.mark.parametrize(
    ("kind", "overlap"), only([("table", True), ("transformers", False)], product(KINDS, (False, True)))
)
def test_texts_are_those_of_plain_decoding_with_the_same_seed(kind: str, overlap: bool) -> None:
    models = MODELS if kind == "table" else transformers_models()
    prompts = [[0, 1, 1, 0, 1], [1], [1, 1]]
    sampling = [SamplingParams(t, max_tokens=30, seed=s) for s, t in enumerate((1.0, 0.0, 0.7))]
    plain = texts(autoregressive.build(models.target), prompts, sampling)
    for exit_layer in (None, 1):
        parts = built(models, overlap=overlap, exit_layer=exit_layer)
        assert texts(parts, prompts, sampling) == plain
        # parts of prompts are read beside drafts of other requests
        assert texts(parts, prompts, sampling, prompt_tokens=2) == plain
    assert texts(built(models), prompts[:1], sampling[:1]) == plain[:1]


def test_a_request_in_the_slot_of_a_cancelled_one_gets_nothing_of_its_draft() -> None:
    engine = Engine[str](built())
    slot = engine.add("first", torch.tensor([0, 1, 1]), SamplingParams(1.0, max_tokens=40, seed=1))
    for _ in range(3):
        engine.step()
    engine.cancel(slot)
    sampling = SamplingParams(1.0, max_tokens=20, seed=9)
    assert engine.add("second", torch.tensor([1]), sampling) == slot
    for _ in engine.steps():
        pass
    assert engine.output(slot) == texts(autoregressive.build(MODELS.target), [[1]], [sampling])[0]


def test_keys_are_the_most_probable_ends_of_verification() -> None:
    probs = torch.tensor([[0.5, 0.4, 0.1, 0.0], [0.1, 0.6, 0.3, 0.0], [0.7, 0.15, 0.1, 0.05]])
    chain = TokenTree(torch.tensor([3, 0, 2]), Forest.chain((2,)))  # accepted with 0.5, then with 0.3

    def keys(budget: int, *, room: int = 9, stops: tuple[int, ...] = (), candidates: int = 2) -> Any:
        stem = stem_of_keys(chain, probs.log(), [room], [stops], candidates, budget)
        tokens, forest = stem.token_list(), stem.forest
        leaves = [node for node in range(1, len(stem)) if not forest.children[node]]
        return [[tokens[node] for node in forest.path(leaf)[1:]] for leaf in leaves]

    # 0.4 after nothing, 0.5 x 0.6, 0.5 x 0.3 x 0.7, 0.5 x 0.3 x 0.15; the draft's own tokens are no keys
    assert sorted(keys(9)) == [[0, 1], [0, 2, 0], [0, 2, 1], [1]]
    assert keys(3)[-1] == [0, 2, 0] and keys(2) == [[1], [0, 1]]
    assert sorted(keys(9, candidates=1)) == [[0, 1], [0, 2, 0]]
    assert sorted(keys(9, stops=(1,))) == [[0, 2, 0]]  # the text ends with the others
    assert sorted(keys(9, stops=(2,))) == [[0, 1], [1]]  # or with the draft itself
    assert keys(9, room=2) == [[1]] and not keys(9, room=1)
    both = TokenTree(torch.tensor([3, 3, 0]), Forest.of([-1, -1, 1], 2))
    stem = stem_of_keys(both, probs[[0, 0, 1]].log(), [0, 9], [(), ()], 2, 1)
    assert stem.token_list() == [3, 3, 1] and stem.forest.parents == (-1, -1, 1)


@cache
def llama(layers: int, seed: int = 0) -> HFTarget:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(llama_config(12, layers, initializer_range=0.3))
    return HFTarget(model.double().eval())


@pytest.mark.parametrize("kind", KINDS)
def test_continuations_drafted_at_once_are_those_of_a_new_draft_model_for_each(kind: str) -> None:
    model = TableTarget(12, seed=3) if kind == "table" else llama(1, 1)
    # rows of other lengths; one without keys, and one that has room for 3 tokens
    stem = TokenTree(torch.tensor([4, 7, 9, 1, 2, 3, 5, 6, 8]), Forest.of([-1, -1, -1, 0, 3, 3, 0, 2, 7], 3))
    texts_read = [[1, 2, 4], [3, 7], [5, 6, 7, 8, 9]]

    def context(tokens: Sequence[Sequence[int]], room: Sequence[int]) -> Context:
        return Context(
            tokens=tuple(map(torch.tensor, tokens)),
            committed=tuple(map(len, tokens)),
            max_draft_depth=tuple(room),
            slots=tuple(range(len(tokens))),
            cache=model.open(len(tokens), 64),
            sampling=(SamplingParams(0.0, max_tokens=99),) * len(tokens),
            noise=KeyedNoise([0] * len(tokens), [0] * len(tokens), list(map(len, tokens))),
        )

    drafter = DraftModel(model, sampled=False)
    drafter.propose(context(texts_read, (9, 9, 9)), Plan((3, 0, 3)))  # as in the serial fallback
    whole = drafter.propose(context(texts_read, (9, 9, 3)), Plan((3, 0, 3), stem=stem))
    tree, tokens = whole.tree, whole.tree.token_list()
    paths = [[tokens[node] for node in tree.forest.path(leaf)] for leaf in range(len(tree))]
    assert whole.forwards == 3
    leaves = {0: [[1, 2], [1, 3], [5]], 2: [[6, 8]]}
    for row, keys in leaves.items():
        for key in keys:
            room = 3 if row == 0 else 1
            alone = context([[*texts_read[row], *key]], (room,))
            draft = DraftModel(model, sampled=False).propose(alone, Plan((room,))).tree.token_list()
            assert [texts_read[row][-1], *key, *draft[1:]] in paths
    assert len(tree) == len(stem) + 3 * 3 + 1 and len(tree.forest.nodes[1]) == 1


def test_the_exit_is_the_last_norm_and_the_lm_head_and_the_target_goes_on_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, text = llama(4), [1, 5, 2, 9, 4]
    early = first_layers(target, None)
    assert isinstance(early, SlimTarget) and early.carried_layer == 1
    cache = target.open(1, 32)
    target.keep([torch.tensor(text[:2])], [0], cache, two_rendezvous.NOTHING)
    chain = TokenTree(torch.tensor(text[2:]), Forest.chain((2,)))
    logits = early.score(chain, [0], early.view(cache)).logits
    assert logits is not None
    with torch.inference_mode():
        states = target.model(torch.tensor([text]), output_hidden_states=True).hidden_states[2][0, 2:]
        with_norm, without = (
            target.model.lm_head(each) for each in (target.model.model.norm(states), states)
        )
    assert torch.allclose(logits, with_norm, atol=1e-9) and not torch.allclose(logits, without, atol=0.1)
    went_on = list[int]()
    run = ForwardAfter._run
    monkeypatch.setattr(
        ForwardAfter, "_run", lambda self, *args: (went_on.append(self._layer), run(self, *args))[1]
    )
    parts = mirror_sd.build(target, draft=llama(1, 1), overlap=False)  # its second layer is the exit
    steps = list[Step]()
    texts(parts, [[1]], [SamplingParams(max_tokens=12)], observe=steps.append)
    assert went_on == [1] * sum(step.ctx.max_draft_depth[0] > 0 for step in steps)


def reuse(parts: Any, prompts: Sequence[Sequence[int]], temperature: float, tokens: int) -> float:
    """The share of steps, among those of requests that go on, after which a draft is ready."""
    schedule, ready = two_rendezvous.left_below, list[bool]()

    def counted(session: Any, draft: TokenTree, step: Step) -> dict[RequestState, TokenTree]:
        left = schedule(session, draft, step)
        going_on = [slot for row, slot in enumerate(step.ctx.slots) if row not in step.finished]
        ready.extend(session.request(slot) in left for slot in going_on)
        return left

    sampling = [SamplingParams(temperature, max_tokens=tokens, seed=seed) for seed in range(len(prompts))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two_rendezvous, "left_below", counted)
        texts(parts, prompts, sampling)
    return sum(ready) / len(ready)


def rising(measured: Callable[..., float], name: str, values: Sequence[int]) -> bool:
    found = [measured(**{name: value}) for value in values]
    return all(one < two for one, two in zip(found, found[1:], strict=False))


@pytest.mark.parametrize("kind", ["table", slow("zoo")])
def test_more_drafts_are_ready_with_more_candidates_a_later_exit_and_a_larger_budget(kind: str) -> None:
    if kind == "table":
        model, draft = TableTarget(12, seed=3), TableTarget(12, seed=5)
        prompts, tokens = [[seed, 3] for seed in range(12)], 20
    else:
        loaded, small = (outpace.load(name, dtype="float64") for name in ("zoo:target", "zoo:draft"))
        model, draft = loaded.target, small.target
        words = ("def add(a, b):\n    ", "for index in range(", "The sum of 3 and 4 is ")
        prompts, tokens = [loaded.tokenizer.encode(text) for text in words], 24

    def measured(**options: int) -> float:
        options = {"candidates": 4, "budget": 64} | options
        return reuse(mirror_sd.build(model, draft=draft, overlap=False, **options), prompts, 1.0, tokens)

    last = model.num_layers - 1
    assert rising(measured, "candidates", (1, 4))
    assert rising(measured, "exit_layer", (1, last))
    assert kind == "zoo" or rising(measured, "budget", (1, 16))


class Paced(TableTarget):
    """A table model whose forwards take this long, without occupying the processor."""

    def __init__(self, seconds: float, seed: int) -> None:
        super().__init__(4, seed=seed)
        self.seconds = seconds

    def score(self, *args: Any, **keywords: Any) -> Scores:
        sleep(self.seconds)
        return super().score(*args, **keywords)


@pytest.mark.slow
def test_the_target_does_not_wait_for_drafts_that_are_made_meanwhile() -> None:
    waited: dict[bool, float] = {}
    for overlap in (True, False):
        parts = mirror_sd.build(Paced(0.06, 1), draft=Paced(0.01, 1), depth=2, candidates=4, overlap=overlap)
        steps = list[Step]()
        texts(parts, [[1, 2]], [SamplingParams(max_tokens=24)], observe=steps.append)
        later = steps[1:-1]  # the draft model is the target: all drafts are ready
        assert all(len(step.generated[0]) == 3 for step in later)
        waited[overlap] = sum(step.seconds["draft"] for step in later) / len(later)
    assert waited[False] > 0.02 and waited[True] < waited[False] / 2


def test_what_it_cannot_run_on_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = llama(4), llama(1, 1)
    for wrong, message in (
        ({"exit_layer": 4}, "a model of 4 layers has no exit after 4 of them"),
        ({"candidates": 0}, "candidates is 0; give a number of at least 1"),
        ({"budget": 0}, "budget is 0; give a number of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            mirror_sd.build(target, draft=draft, **wrong)
    with pytest.raises(ValueError, match="a target of one layer has no early exit"):
        mirror_sd.build(draft, draft=draft)
    monkeypatch.setattr(draft, "chains_only", True)
    with pytest.raises(ValueError, match="the draft model reads chains only"):
        mirror_sd.build(target, draft=draft)
    monkeypatch.setattr(Forward, "begins_later", False)
    with pytest.raises(ValueError, match="mirror-sd lets the target go on .* load it without compiling"):
        mirror_sd.build(target, draft=draft)
