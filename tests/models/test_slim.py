"""A target without some of its sub-layers, on the target's KV cache, gives what the whole model gives if
these sub-layers do nothing at the draft nodes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outpace import recipes
from outpace.core.contracts import Carry, Prompt, ReadsTargetCache, Want
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.decode import Session
from outpace.models.hf.target import HFTarget
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import switching, without
from outpace.models.slim.slim_target import SlimTarget
from outpace.recipes.self_speculation.layerskip import layerskip
from outpace.sampling.target_probs import LazyTargetProbs
from tests.models.conftest import SHARED_KEYS
from tests.tiers import only, slow

SLOTS = (2, 0)
PROMPTS = [torch.tensor(text) for text in ([5, 9, 31, 7, 44, 5, 9, 12, 60, 3, 18, 5], [8, 3, 20])]
# below the two roots: a tree of the first row, interleaved with a chain of the second
FOREST = Forest.of([-1, -1, 0, 0, 1, 2, 4, 2, 3], 2)
CHAINS = Forest.of([-1, -1, 0, 1, 2, 3, 4], 2)
TOKENS = torch.tensor([11, 20, 33, 4, 50, 17, 6, 29, 41])
EXACT = 1e-9
ATTENTION = {"gpt2": "attn", "falcon": "self_attention"}
FAMILIES = [
    "llama",
    "qwen3",
    "gemma3_text",
    "gpt2",
    "opt",
    "mixtral",
    "olmo2",
    "falcon",
    "gemma2",
    "deepseek_v3",
]
QUICK = ["llama", "gemma3_text", "gpt2"]


def layers_of(model: nn.Module) -> nn.ModuleList:
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList))


def in_place_of(output, states, begin: int):
    """The output with other states from token `begin` on."""
    first = output[0] if isinstance(output, tuple) else output
    changed = torch.cat((first[:, :begin], states[:, begin:]), 1)
    return (changed, *output[1:]) if isinstance(output, tuple) else changed


def expected(model, text, begin: int, skipped: SkipSet):
    """Logits of the whole model over a text, without a cache; from token `begin` on the sub-layers of the set
    do nothing."""

    def replace(module: nn.Module, *, zeros: bool):
        def hook(module, inputs, given, output):
            states = inputs[0] if inputs else given["hidden_states"]
            return in_place_of(output, torch.zeros_like(states) if zeros else states, begin)

        return module.register_forward_hook(hook, with_kwargs=True)

    hooks, layers, kind = [], layers_of(model), model.config.model_type
    for index in skipped.layers:
        hooks.append(replace(layers[index], zeros=False))
    for index in skipped.attention - skipped.layers:
        hooks.append(replace(getattr(layers[index], ATTENTION.get(kind, "self_attn")), zeros=True))
    for index in skipped.mlp - skipped.layers:
        hooks.append(replace(layers[index].mlp, zeros=True))
    with torch.no_grad():
        logits = model(text[None], use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    return logits


def drafted(target: HFTarget, slim, forest: Forest):
    """Logits of the smaller model at the nodes, read in two forwards; and the caches of both."""
    cache = target.open(3, 64)
    target.prefill([Prompt(text) for text in PROMPTS], SLOTS, cache, Want())
    view = slim.view(cache)
    tokens = torch.cat([torch.stack([text[-1] for text in PROMPTS]), TOKENS])[: len(forest)]
    start = TokenTree(tokens[:4], Forest.of(forest.parents[:4], 2))
    tree = TokenTree(tokens, forest)
    logits = [slim.score(each, SLOTS, view).logits for each in (start, tree)]
    return tree, torch.cat(logits), cache, view


def check(model, reference, skipped: SkipSet, forest: Forest) -> None:
    fresh = reference(model).model
    target = HFTarget(model)
    slim = without(target, skipped)
    assert isinstance(slim, ReadsTargetCache)
    tree, logits, cache, view = drafted(target, slim, forest)
    plain = []
    for leaf in (node for node in range(len(forest)) if not forest.children[node]):
        path = forest.path(leaf)
        text = torch.cat((PROMPTS[forest.rows[leaf]][:-1], tree.tokens[path]))
        begin = len(text) - len(path)
        there = expected(fresh, text, begin, skipped)[begin:]
        assert (logits[path] - there).abs().max() <= EXACT
        whole = fresh(text[None], use_cache=False).logits[0, begin:]
        assert (there - whole).abs().max() > 0.01, "what is skipped must matter"
        plain.append((path, whole.detach()))
    # the target's scores are those without a draft before them
    view.commit(tree, [-1, -1], SLOTS)
    view.release(SLOTS)
    scores = target.score(tree, SLOTS, cache).logits
    for path, whole in plain:
        assert (scores[path] - whole).abs().max() <= EXACT
    cache.commit(tree, [forest.nodes[0][-1], 1], SLOTS)
    assert view.lengths == cache.lengths
    assert [cache.lengths[slot] for slot in SLOTS] == [
        len(PROMPTS[0]) + forest.depths[forest.nodes[0][-1]],
        len(PROMPTS[1]),
    ]


@pytest.mark.parametrize("name", only(QUICK, FAMILIES))
def test_an_early_exit(name, tiny, reference, float64_throughout):
    check(tiny(name), reference, SkipSet.after(1, 2), FOREST)


@pytest.mark.parametrize("name", only(QUICK, [name for name in FAMILIES if name != "opt"]))
@pytest.mark.parametrize(
    "skipped",
    [
        SkipSet(attention=frozenset({0}), mlp=frozenset({1})),
        SkipSet(attention=frozenset({1})),
        SkipSet(attention=frozenset({0}), mlp=frozenset({0})),
    ],
    ids=["attention and mlp of different layers", "attention", "a whole layer"],
)
def test_skipped_sub_layers(name, skipped, tiny, reference, float64_throughout):
    check(tiny(name), reference, skipped, FOREST)


@pytest.mark.parametrize("name", only(QUICK, [name for name in FAMILIES if name != "opt"]))
def test_committed_text_is_read_again_without_a_trace(name, tiny, reference, float64_throughout):
    model, text, begin = tiny(name), PROMPTS[0], 4
    fresh, target = reference(model).model, HFTarget(model)
    cache = target.open(3, 64)
    target.prefill([Prompt(torch.cat((text, text[-1:])))], (2,), cache, Want())
    before = [view.clone() for view in cache.views(2, 0, 64)]
    without_any = switching(target)
    sets = [SkipSet(frozenset({0}), frozenset({1})), SkipSet(frozenset({1})), SkipSet.of_layers([0])]
    for skipped in (*sets, sets[0]):  # what one set replaced is put back for the next
        logits = without_any(skipped).reread(cache, 2, text, begin)
        assert (logits - expected(fresh, text, begin, skipped)[begin:]).abs().max() <= EXACT
    assert cache.lengths[2] == len(text)
    for view, old in zip(cache.views(2, 0, 64), before, strict=True):
        assert torch.equal(view, old)


@pytest.mark.parametrize("name", only(QUICK, FAMILIES))
def test_sets_that_take_turns_draft_as_models_of_their_own(name, tiny, float64_throughout):
    target = HFTarget(tiny(name))
    take = switching(target)
    sets = [SkipSet.of_layers([0]), SkipSet.of_layers([1])]
    turns = [take(skipped) for skipped in sets]
    for _ in range(2):
        for slim, skipped in zip(turns, sets, strict=True):
            _, logits, *_ = drafted(target, slim, FOREST)
            _, there, *_ = drafted(target, without(target, skipped), FOREST)
            assert torch.equal(logits, there)


def test_models_that_score_chains_only_draft_chains(tiny, reference, float64_throughout):
    with pytest.warns(UserWarning, match="chains"):
        check(tiny("bloom"), reference, SkipSet.after(1, 2), CHAINS)


@pytest.mark.parametrize(
    ("name", "skipped", "message"),
    [
        ("opt", SkipSet(mlp=frozenset({1})), "no module for mlp: skip whole layers"),
        ("gemma3n_text", SkipSet(attention=frozenset({1})), "does more than add .*: skip whole layers"),
        ("llama", SkipSet.of_layers([2]), "layer 2 cannot be skipped: the model has layers 0 to 1"),
        ("llama", SkipSet.of_layers([0, 1]), "all 2 layers are skipped: keep at least one"),
    ],
)
def test_sub_layers_that_cannot_be_skipped(name, skipped, message, tiny):
    with pytest.raises(ValueError, match=message):
        without(HFTarget(tiny(name)), skipped)


def test_later_layers_may_read_keys_of_layers_before_the_exit(tiny, reference, float64_throughout):
    model = tiny("gemma4_text", **SHARED_KEYS)
    check(model, reference, SkipSet.after(3, 4), FOREST)
    target = HFTarget(model)
    assert without(target, SkipSet.after(3, 4)).carried_layer is None  # the target needs the keys once more
    with pytest.raises(ValueError, match="cannot be skipped: use layerskip"):
        without(target, SkipSet.of_layers([0]))
    with pytest.raises(ValueError, match="not every layer can be skipped: use layerskip"):
        switching(target)


@pytest.mark.parametrize("method", ["layerskip", "del-decoding", "clasp", "swift", "quicksilver"])
def test_layers_with_several_vectors_per_token_are_refused(method, tiny):
    with pytest.raises(ValueError, match="return several vectors per token, .*: use a method that reads"):
        recipes.get(method)(HFTarget(tiny("gemma3n_text")))


def test_an_exit_leaves_some_layers():
    with pytest.raises(ValueError, match="no exit after 2 of them: use 1 to 1"):
        SkipSet.after(2, 2)


def test_without_a_target_it_is_an_ordinary_draft_model(tiny, reference, float64_throughout):
    model = tiny("llama")
    slim, text = without(HFTarget(model), SkipSet.after(1, 2)), PROMPTS[0]
    cache = slim.open(1, 64)
    slim.prefill([Prompt(text)], (0,), cache, Want())
    logits = slim.score(TokenTree.roots(text[-1:]), (0,), cache).logits
    there = expected(reference(model).model, text, 0, SkipSet.after(1, 2))[-1:]
    assert (logits - there).abs().max() <= EXACT


SKIPPED = SkipSet(attention=frozenset({0}), mlp=frozenset({1}))


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache", [None, slow("int8")])
@pytest.mark.parametrize("skipped", [SkipSet.after(1, 2), SKIPPED], ids=["exit", "sub-layers"])
def test_compiled_layers_read_the_compiled_target_s_cache(skipped, kv_cache, tiny):
    model = tiny("llama").float()
    eager, target = HFTarget(model, kv_cache=kv_cache), HFTarget(model, compile=True, kv_cache=kv_cache)
    assert target.compiled is not None
    slim = without(target, skipped)
    assert isinstance(slim, SlimTarget) and slim.compiled is not None
    tree, logits, cache, view = drafted(target, slim, FOREST)
    _, there, *_ = drafted(eager, without(eager, skipped), FOREST)
    assert (logits - there).norm() / there.norm() < 1e-3
    scores = target.score(tree, SLOTS, cache).logits
    cache.commit(tree, [FOREST.nodes[0][-1], 1], SLOTS)
    # the memory is replaced by larger memory, whose entries the smaller model reads too
    view.discard()
    cache.reserve(2, 600)
    roots = TokenTree(torch.tensor([7, 8]), Forest.chain((0, 0)))
    more = slim.score(roots, SLOTS, view).logits
    fresh = slim.view(cache)
    assert torch.equal(more, slim.score(roots, SLOTS, fresh).logits)
    assert (scores - logits).abs().max() > 0.01


@pytest.mark.slow
def test_a_cache_of_another_kind_is_refused(tiny):
    slim = without(HFTarget(tiny("llama")), SkipSet.after(1, 2))
    compiled = HFTarget(tiny("llama").float(), compile=True)
    with pytest.raises(ValueError, match="the target's own KV cache"):
        slim.view(compiled.open(1, 64))


@pytest.mark.parametrize("name", only(QUICK, FAMILIES))
def test_the_target_continues_from_what_the_draft_has_computed(name, tiny, reference, float64_throughout):
    target = HFTarget(tiny(name))
    slim = without(target, SkipSet.after(1, 2))
    assert isinstance(slim, SlimTarget) and slim.carried_layer == 0
    found = []
    for uses in (True, False):
        cache = target.open(3, 64)
        target.prefill([Prompt(text) for text in PROMPTS], SLOTS, cache, Want())
        tree = TokenTree(torch.cat([torch.stack([text[-1] for text in PROMPTS]), TOKENS]), FOREST)
        carry = None
        if uses:
            hidden = slim.score(tree, SLOTS, slim.view(cache), Want(hidden=frozenset([0]))).hidden[0]
            carry = Carry(tree, 0, hidden)
        scores = target.score(tree, SLOTS, cache, Want(hidden=frozenset([-1])), carry=carry)
        cache.commit(tree, [FOREST.nodes[0][-1], 1], SLOTS)
        roots = TokenTree(torch.tensor([7, 8]), Forest.chain((0, 0)))
        found.append((scores.logits, scores.hidden[-1], target.score(roots, SLOTS, cache).logits))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= EXACT


def test_early_layers_run_once_per_draft_token(tiny):
    target = HFTarget(tiny("llama"))
    counts = {"early": 0, "late": 0}
    parts = layerskip.build(target, exit_layer=1, depth=4)
    inner = parts.drafter._drafter.model.forward.model.model.layers[0]

    def count(name):
        def hook(module, inputs, output):
            counts[name] += inputs[0].shape[1]

        return hook

    inner.register_forward_hook(count("early"))
    target.forward.model.model.layers[0].register_forward_hook(count("late"))
    session = Session(parts, [PROMPTS[0]], [SamplingParams(max_tokens=20)], LazyTargetProbs)
    steps = list(session.steps())
    drafting = [step for step in steps if len(step.draft.tree) > 1]
    assert counts["early"] == sum(len(step.draft.tree) for step in drafting)
    # the whole target read the prompt and the steps without a draft
    assert counts["late"] == len(PROMPTS[0]) + sum(len(step.draft.tree) == 1 for step in steps[1:])
    assert any(len(tokens) > 1 for step in steps for tokens in step.generated)


def test_carried_work_of_another_tree_is_not_used(tiny, float64_throughout):
    target = HFTarget(tiny("llama"))
    tree = TokenTree(torch.tensor([5, 6, 7]), Forest.chain((2,)))
    other = TokenTree(torch.tensor([5, 6, 8]), Forest.chain((2,)))
    logits = []
    for carry in (None, Carry(other, 0, torch.zeros(3, 32, dtype=torch.float64))):
        cache = target.open(1, 64)
        logits.append(target.score(tree, (0,), cache, carry=carry).logits)
    assert torch.equal(*logits)
