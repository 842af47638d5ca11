"""Forwards of fixed sizes give the logits of the eager model; recording on a GPU is replaced by a stub."""

from __future__ import annotations

import copy
import gc
import random

import pytest
import torch

from outpace.core.contracts import PrefixCache, Prompt, Want
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.models.cuda_graphs import static_memory
from outpace.models.cuda_graphs.graph_replay import SIZES, GraphReplay
from outpace.models.eager.forward import Forward
from outpace.models.heads.opened_head import OpenedHead
from outpace.models.heads.position_model import PositionModel
from outpace.models.hf.compiling import check
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.proof.option_values import choices
from outpace.recipes import find

ROUNDING = 1e-11  # of logits of about 1, in float64


def some(length, seed=0):
    """Random tokens."""
    return torch.randint(3, 61, (length,), generator=torch.Generator().manual_seed(seed))


def as_it_is(forward):
    """In place of a recording: the same forward, run again; its outputs stay where they are, as a recording's
    do."""
    kept = forward()

    def run():
        new = forward()
        if kept.logits is not None:
            kept.logits.copy_(new.logits)
        for layer, states in kept.hidden.items():
            states.copy_(new.hidden[layer])
        return kept

    return run


@pytest.fixture
def pair(tiny):
    """A model as it is, and with forwards of fixed sizes."""

    def get(name):
        model = tiny(name)
        targets = HFTarget(copy.deepcopy(model)), HFTarget(model)
        targets[1].reader = GraphReplay(targets[1].forward, as_it_is)
        return targets

    return get


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "gpt2"])
def test_texts_trees_and_batches_score_as_the_model_does(name, pair):
    targets, choice = pair(name), random.Random(1)
    check(targets[1].reader, targets[0].forward, trees=True)
    for slots, lengths in (((2,), (13,)), ((3, 0, 2), (13, 3, 90)), ((1,), (2,))):
        caches = [target.open(4, 160) for target in targets]
        texts = [some(length, length) for length in lengths]
        for target, cache in zip(targets, caches, strict=True):
            target.prefill([Prompt(text) for text in texts], slots, cache, Want())
        count = len(slots)
        for below in (0, 3, 11, 40, 3):
            parents = [choice.randrange(node + count) for node in range(below)]
            forest = Forest.of([-1] * count + parents, count)
            tokens = some(below + count, below)
            if below == 11:  # read in two calls
                start = TokenTree(tokens[: count + 4], Forest.of(forest.parents[: count + 4], count))
                for target, cache in zip(targets, caches, strict=True):
                    target.score(start, slots, cache)
            tree = TokenTree(tokens, forest)
            ours, theirs = (
                target.score(tree, slots, cache).logits for target, cache in zip(targets, caches, strict=True)
            )
            assert (ours - theirs).abs().max() < ROUNDING
            leaves = [choice.choice(nodes) for nodes in forest.nodes]
            for cache in caches:
                cache.commit(tree, leaves, slots)


@pytest.mark.slow
def test_a_size_is_made_once_for_all_caches_of_a_size(pair):
    target = pair("llama")[1]
    for _ in range(3):
        cache = target.open(2, 100)
        target.prefill([Prompt(some(9))], (0,), cache, Want())
        for nodes in (1, 3, 20):
            chain = TokenTree(some(nodes), Forest.chain((nodes - 1,)))
            target.score(chain, (0,), cache)
            cache.commit(chain, [-1], (0,))
        del cache
        gc.collect()
    assert len(target.reader._made) == 3 + 1 < len(SIZES)  # and that of the prompt, without logits


def test_caches_of_many_sizes_do_not_fill_the_device(pair, monkeypatch):
    monkeypatch.setattr(static_memory, "KEPT_BYTES", 5 * 256 * (target := pair("llama")[1]).token_bytes)

    def used(slots):
        """Whether the graph of a cache was made anew."""
        cache, before = target.open(slots, 100), set(target.reader._made)
        target.score(TokenTree(some(1), Forest.chain((0,))), (0,), cache)
        is_new = set(target.reader._made) != before
        del cache
        return is_new

    assert [used(slots) for slots in (1, 2, 3, 1)] == [True, True, True, False]
    assert used(9)  # too large, but the last
    assert not used(9)
    assert used(8)  # in place of that
    assert [used(slots) for slots in (9, 2)] == [True, True]
    assert len(target.reader._made) == len(target.reader._pool._free) == 1


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2"])
def test_outputs_of_layers_are_recorded(name, pair, monkeypatch):
    targets, choice = pair(name), random.Random(2)
    monkeypatch.setattr(type(targets[1].forward), "read", eager_read_of(targets[0].forward))
    caches = [target.open(3, 100) for target in targets]
    prompts = [Prompt(some(20)), Prompt(some(7, 1))]
    hidden = frozenset({-1, 0, targets[0].num_layers - 1})
    read = [
        target.prefill(prompts, (2, 0), cache, Want(hidden=hidden))[1]
        for target, cache in zip(targets, caches, strict=True)
    ]
    assert read[1].logits is None
    check_outputs(*read, hidden)
    for below, wanted in ((0, hidden), (9, frozenset({-1})), (20, frozenset({0})), (9, frozenset())):
        parents = [choice.randrange(node + 2) for node in range(below)]
        tree = TokenTree(some(below + 2, below), Forest.of([-1, -1, *parents], 2))
        for logits in (False, True):
            scored = [
                target.score(tree, (2, 0), cache, Want(hidden=wanted), logits=logits)
                for target, cache in zip(targets, caches, strict=True)
            ]
            assert (scored[1].logits is not None) == logits
            check_outputs(*scored, wanted)
            for cache in caches:
                cache.discard()
        for target, cache in zip(targets, caches, strict=True):
            target.score(tree, (2, 0), cache)
            cache.commit(tree, [nodes[-1] for nodes in tree.forest.nodes], (2, 0))


def eager_read_of(forward):
    """`Forward.read` that only this one may use: the others are to be recorded."""
    read = Forward.read

    def checked(self, *args, **keywords):
        assert self is forward, "it was not recorded"
        return read(self, *args, **keywords)

    return checked


def check_outputs(theirs, ours, layers):
    assert ours.hidden.keys() == theirs.hidden.keys() == layers
    for layer in layers:
        assert (ours.hidden[layer] - theirs.hidden[layer]).abs().max() < ROUNDING
    if ours.logits is not None:
        assert (ours.logits - theirs.logits).abs().max() < ROUNDING


@pytest.mark.parametrize("name", ["eagle", "eagle2", "hydra", "medusa"])
def test_methods_with_heads_generate_the_same_texts(name, monkeypatch):
    models, recipe = transformers_models(vocab=20), find()[name]
    prompts = [[1, 2, 3, 1], [4], [5, 6, 5, 6, 5, 6, 7]]
    sampling = [SamplingParams(0.7 * row, max_tokens=12 + row, seed=row) for row in range(3)]
    texts_of = {}
    for recorded in (False, True):
        options = next(choices(recipe, models))
        heads = [value for value in options.values() if isinstance(value, OpenedHead)]
        of_heads = [head.prefix if isinstance(head, PositionModel) else head for head in heads]
        opened = [models.target, *(head.model for head in of_heads if head is not None)]
        if recorded:
            for target in opened:
                target.reader = GraphReplay(target.forward, as_it_is)
                check(target.reader, target.forward, trees=True)
            monkeypatch.setattr(Forward, "read", eager_read_of(None))
        texts_of[recorded] = texts(recipe.build(models.target, **options), prompts, sampling)
    assert texts_of[True] == texts_of[False]


def test_two_caches_at_once_have_memory_of_their_own(pair):
    target = pair("llama")[1]
    caches = [target.open(1, 50) for _ in range(2)]
    scored = []
    for seed, cache in enumerate(caches):
        target.prefill([Prompt(some(9, seed))], (0,), cache, Want())
    for cache in caches:
        scored.append(target.score(TokenTree(some(1), Forest.chain((0,))), (0,), cache).logits.clone())
    assert not torch.equal(*scored)


def test_its_slots_share_nothing_and_those_in_use_count(pair):
    cache = (target := pair("llama")[1]).open(3, 100)
    assert not isinstance(cache, PrefixCache) and cache.num_bytes == 0
    slot = 256 * target.token_bytes
    assert [cache.bytes_for({1: length}) for length in (1, 255, 256)] == [slot, slot, 2 * slot]
    target.prefill([Prompt(some(9))], (0,), cache, Want())
    assert cache.num_bytes == slot and cache.bytes_for({0: 20, 1: 600}) == 2 * 4 * slot


def test_a_cache_grows(pair):
    targets = pair("llama")
    caches = [target.open(1, 20) for target in targets]
    for target, cache in zip(targets, caches, strict=True):
        target.prefill([Prompt(some(19))], (0,), cache, Want())
    tree = TokenTree(some(301), Forest.of([-1] + [0] * 300, 1))
    leaf = TokenTree(some(2), Forest.chain((1,)))
    for each in (tree, leaf):
        ours, theirs = (
            target.score(each, (0,), cache).logits for target, cache in zip(targets, caches, strict=True)
        )
        assert (ours - theirs).abs().max() < ROUNDING
        for cache in caches:
            cache.commit(each, [1], (0,))


def live_bytes(at_least):
    """Memory of all tensors with storages of this size or more, each storage counted once."""
    gc.collect()
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in gc.get_objects()
        if issubclass(type(each), torch.Tensor)
    }
    return sum(size for size in storages.values() if size >= at_least)


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["committed", "provisional"])
def test_a_cache_that_grows_never_holds_its_memory_twice(pair, monkeypatch, kept):
    targets = pair("llama")
    caches = [target.open(2, 200) for target in targets]
    reader, cache = targets[1].reader, caches[1]
    begin = TokenTree(some(4, 1), Forest.of([-1, 0, 1, 0], 1))
    for target, each in zip(targets, caches, strict=True):
        target.prefill([Prompt(some(19))], (1,), each, Want())
        target.score(begin, (1,), each)
        if kept == "committed":
            each.commit(begin, [3], (1,))
    small, allocate, live = sum(each.nbytes for each in cache.storages), cache._memory, []

    def measured(slots, capacity):
        live.append(live_bytes(small))
        made = allocate(slots, capacity)
        live.append(live_bytes(small) - sum(each.nbytes for each in made))
        return made

    before = live_bytes(small)
    assert reader._made and before >= small
    monkeypatch.setattr(cache, "_memory", measured)
    cache.grow(5)
    cache.reserve(0, 600)
    # nothing of the smaller memory is left when the larger one is allocated, nor a graph that refers to it
    assert live == [before - small] * 4 and not reader._made
    more = TokenTree(torch.cat((begin.tokens, some(2))), Forest.of([-1, 0, 1, 0, 3, 4], 1))
    if kept == "committed":
        more = TokenTree(some(3, 2), Forest.chain((2,)))
    ours, theirs = (
        target.score(more, (1,), each).logits for target, each in zip(targets, caches, strict=True)
    )
    assert (ours - theirs).abs().max() < ROUNDING
    cache.commit(more, [len(more) - 1], (1,))


@pytest.mark.parametrize(
    ("name", "why"), [("falcon", "has attention code"), ("llama4_text", "compute position ids")]
)
def test_a_model_that_cannot_be_recorded_warns_with_the_reason(name, why, tiny):
    target = HFTarget(tiny(name))
    with pytest.raises(ValueError, match=why):
        check(GraphReplay(target.forward, as_it_is), target.forward, trees=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records on a GPU")
def test_a_model_with_experts_warns_and_runs_eagerly(tiny):
    """Its experts read on the host how many tokens each of them has, which cannot be recorded."""
    with pytest.warns(UserWarning, match="runs eagerly: CUDA error"):
        target = HFTarget(tiny("gpt_oss").float().cuda(), compile=True)
    assert not isinstance(target.reader, GraphReplay)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records on a GPU")
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_recording_gives_the_same_as_the_forward(name, tiny):
    model = tiny(name).float().cuda()
    targets = HFTarget(copy.deepcopy(model)), HFTarget(model, compile=True)
    assert isinstance(targets[1].reader, GraphReplay)
    for turn in range(3):
        want = Want(hidden=frozenset({-1, 0} if turn else ()))
        caches = [target.open(3, 100) for target in targets]
        for target, cache in zip(targets, caches, strict=True):
            target.prefill([Prompt(some(9, turn)), Prompt(some(30, turn))], (2, 0), cache, want)
        for below in (0, 3, 20):
            parents = [random.Random(node).randrange(node + 2) for node in range(below)]
            tree = TokenTree(some(below + 2, turn).cuda(), Forest.of([-1, -1, *parents], 2))
            ours, theirs = (
                target.score(tree, (2, 0), cache, want) for target, cache in zip(targets, caches, strict=True)
            )
            assert (ours.logits - theirs.logits).abs().max() < 1e-4
            for layer in want.hidden:
                assert (ours.hidden[layer] - theirs.hidden[layer]).abs().max() < 1e-4
            for cache in caches:
                cache.commit(tree, [0, 1], (2, 0))
