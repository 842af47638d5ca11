"""A target in whose forwards tokens leave early has the logits of its definition, from ragged batches, KV
caches, parts of prompts and trees; and computes only what it says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outpace.core.contracts import Prompt, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.hf.target import HFTarget
from outpace.models.slim.make import with_savings
from outpace.models.slim.partial_target import PartialTarget
from outpace.models.slim.saving_reference import SavingReference
from outpace.models.slim.savings import Savings, bits, distance, quantized
from outpace.models.slim.token_records import RecordingView
from tests.tiers import only

EXACT = 1e-9
SLOTS = (2, 0)
TEXTS = [torch.tensor(text) for text in ([5, 9, 31, 7, 44, 5, 9, 9, 9, 60, 3, 18, 5], [8, 3, 20, 20])]
# below the two roots: a tree of the first row, interleaved with a chain of the second
FOREST = Forest.of([-1, -1, 0, 0, 1, 2, 4, 2, 3], 2)
CHAINS = Forest.of([-1, -1, 0, 1, 2, 3, 4], 2)
TOKENS = torch.tensor([11, 20, 33, 4, 50, 17, 6, 29, 41])
FAMILIES = ["llama", "gemma3_text", "gpt2", "qwen3", "mistral", "mixtral", "olmo2", "gemma2", "opt", "phi3"]
ALWAYS = 1e9  # a threshold below which everything is


def savings_of(model, **others) -> Savings:
    """With a drift of which about half of the tokens have less after the first layer, and a distance of which
    about half of the pairs of neighbours have less."""
    with torch.no_grad():
        output = model(TEXTS[0][None], use_cache=False, output_hidden_states=True)
    before, after = (output.hidden_states[index][0] for index in (0, 1))
    # between two of the values, since rounding decides about equal ones
    drift = float(distance(before, after).quantile(0.55))
    fusion = float(distance(after[:-1], after[1:]).quantile(0.55))
    given = {"drift": drift, "fusion": fusion} | others
    return Savings(1, **({"entropy": ALWAYS} | given))


def made(model, savings: Savings) -> tuple[PartialTarget, SavingReference]:
    target, reference = with_savings(HFTarget(model), savings)
    assert isinstance(target, PartialTarget) and isinstance(reference, SavingReference)
    return target, reference


def errors(model, savings: Savings, forest: Forest) -> tuple[float, PartialTarget]:
    """Largest difference of a logit between the engine and the definition, and what the engine ran."""
    target, reference = made(model, savings)
    cache = target.open(3, 64)
    # the first text in two parts, the second from its second part on
    target.prefill([Prompt(TEXTS[0][:6])], SLOTS[:1], cache, Want())
    target.prefill([Prompt(TEXTS[0][5:]), Prompt(TEXTS[1])], SLOTS, cache, Want())
    texts, worst = [text[:-1].tolist() for text in TEXTS], 0.0
    for begin in (0, 3):  # two steps, each read in two forwards
        tokens = (torch.cat([torch.stack([text[-1] for text in TEXTS]), TOKENS])[: len(forest)] + begin) % 61
        tree = TokenTree(tokens, forest)
        few = TokenTree(tokens[:4], Forest.of(forest.parents[:4], 2))
        logits = torch.cat([target.score(each, SLOTS, cache).logits for each in (few, tree)])
        for node in range(len(forest)):
            path = [tokens[each].item() for each in forest.path(node)]
            there = reference.all_logits([*texts[forest.rows[node]], *path])[-1]
            worst = max(worst, float((logits[node] - there).abs().max()))
        leaf = [forest.nodes[0][-1], forest.nodes[1][1]]
        cache.commit(tree, leaf, SLOTS)
        for row, node in enumerate(leaf):
            texts[row] += [tokens[each].item() for each in forest.path(node)]
    return worst, target


@pytest.mark.parametrize("name", only(["llama", "gemma3_text", "gpt2"], FAMILIES))
def test_halted_tokens_in_trees(name, tiny, float64_throughout) -> None:
    model = tiny(name)
    worst, target = errors(model, savings_of(model, fusion=0.0), FOREST)
    assert worst <= EXACT
    assert 0 < 2 * target.work.tokens - target.work.layer_tokens < target.work.tokens, "some halt"


OTHERS = [
    {"drift": 0.0},
    {"drift": 0.0, "skip_kv": False},
    {"fusion": 0.0, "skip_kv": False},
    {"drift": 0.0, "fusion": 0.0, "quantize": True},
    {"quantize": True},
]


@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_other_savings_in_chains(changes, tiny, float64_throughout) -> None:
    model = tiny("llama")
    savings = savings_of(model, **changes)
    worst, target = errors(model, savings, CHAINS)
    assert worst <= EXACT
    off = not (savings.drift or savings.fusion)
    assert (target.work.layer_tokens == 2 * target.work.tokens) == off


@pytest.mark.slow
def test_the_savings_change_the_logits(tiny, float64_throughout) -> None:
    """Else agreement with the definition would say nothing."""
    model = tiny("llama")
    plain = HFTarget(model).model(TEXTS[0][None], use_cache=False).logits[0].detach()
    for changes in ({}, {"fusion": 0.0}, *OTHERS):
        there = made(model, savings_of(model, **changes))[1].all_logits(TEXTS[0].tolist())
        assert (there - plain).abs().max() > 0.01
    without_kv, with_kv = (
        made(model, savings_of(model, skip_kv=skip))[1].all_logits(TEXTS[0].tolist())
        for skip in (True, False)
    )
    assert (without_kv - with_kv).abs().max() > 1e-4


def logits_of(target: HFTarget, text: Tensor) -> Tensor:
    cache = target.open(1, 64)
    return target.prefill([Prompt(text)], (0,), cache, Want(prompt_logits=True))[1].logits


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_thresholds_that_are_off_leave_every_bit(name, tiny) -> None:
    model = tiny(name).float()
    target, _ = made(model, Savings(1))
    assert torch.equal(logits_of(target, TEXTS[0]), logits_of(HFTarget(model), TEXTS[0]))
    assert target.share_of_products == 1


def test_what_is_counted_is_what_runs(tiny) -> None:
    counted = 0

    def count(module, inputs, output):
        nonlocal counted
        counted += inputs[0].shape[1]

    model, shares = tiny("llama").float(), []
    usual = savings_of(model)
    for factor in (0.0, 0.5, 1.0, 2.0, 4.0):
        target, _ = made(model, Savings(1, drift=factor * usual.drift, entropy=ALWAYS))
        counted = 0
        for layer in target.forward.layers:
            layer.mlp.register_forward_hook(count)
        logits_of(target, TEXTS[0])
        assert counted == target.work.layer_tokens
        shares.append(counted)
    assert shares == sorted(shares, reverse=True) and shares[0] > shares[-1]
    shares = []
    for factor in (0.0, 0.5, 1.0, 2.0, 4.0):
        target, _ = made(model, Savings(1, fusion=factor * usual.fusion))
        logits_of(target, TEXTS[0])
        shares.append(target.work.layer_tokens)
    assert shares == sorted(shares, reverse=True) and shares[0] > shares[-1]


def test_the_lm_head_runs_only_for_tokens_whose_states_hardly_changed(tiny) -> None:
    model, counts = tiny("llama").float(), []
    usual = savings_of(model)
    for drift in (1e-9, usual.drift, 1e9):
        target, _ = made(model, Savings(1, drift=drift, entropy=1e-9))  # nothing halts
        logits_of(target, TEXTS[0])
        counts.append(target.work.head_tokens)
    assert counts[0] == 0 < counts[1] < counts[2] == target.work.tokens  # after the first of two layers


def test_keys_and_values_of_halted_tokens_cost_no_layer(tiny) -> None:
    target, _ = made(tiny("llama").float(), Savings(1, drift=ALWAYS, entropy=ALWAYS, skip_kv=False))
    logits_of(target, TEXTS[0])
    work = target.work
    assert (work.tokens, work.layer_tokens, work.stored_tokens) == (12, 12, 12)


def test_the_view_of_a_target_s_cache_holds_whole_entries(tiny, float64_throughout) -> None:
    """Draft nodes leave early; the text before them is the target's."""
    model = tiny("llama")
    target = HFTarget(model)
    draft, _ = with_savings(target, Savings(1, drift=ALWAYS, entropy=ALWAYS))
    cache = target.open(1, 64)
    target.prefill([Prompt(TEXTS[0])], (0,), cache, Want())
    before = [each.clone() for each in cache.views(0, 0, len(TEXTS[0]) - 1)]
    tree = TokenTree(torch.cat((TEXTS[0][-1:], TOKENS[:2])), Forest.chain((2,)))
    view = draft.view(cache)
    drafted = draft.score(tree, (0,), view).logits
    assert all(
        torch.equal(*pair) for pair in zip(before, cache.views(0, 0, len(before[0][0, 0])), strict=True)
    )
    view.commit(tree, [-1], (0,))
    scored = target.score(tree, (0,), cache).logits
    text = torch.cat((TEXTS[0][:-1], tree.tokens))
    whole = model(text[None], use_cache=False).logits[0, -3:]
    assert (scored - whole).abs().max() <= EXACT
    assert (drafted - whole).abs().max() > 0.01


@pytest.mark.parametrize(
    ("savings", "message"),
    [
        (Savings(2, drift=0.1), "first_layer is 2: a model of 2 layers can save after layers 1 to 1"),
        (Savings(0), "first_layer is 0"),
        (Savings(1, drift=-0.1), "drift is -0.1: it is 0, which turns it off, or more"),
        (Savings(1, entropy=float("nan")), "entropy is nan"),
    ],
)
def test_unsuited_thresholds(savings, message, tiny) -> None:
    with pytest.raises(ValueError, match=message):
        with_savings(HFTarget(tiny("llama")), savings)


@pytest.mark.slow
def test_models_of_other_kinds_are_refused(tiny) -> None:
    with pytest.raises(ValueError, match="compiled forwards cannot: leave out --compile"):
        with_savings(HFTarget(tiny("llama").float(), compile=True), Savings(1, drift=0.1, entropy=1.0))
    with (
        pytest.warns(UserWarning, match="chains"),
        pytest.raises(ValueError, match="attention code of its own"),
    ):
        with_savings(HFTarget(tiny("bloom")), Savings(1, drift=0.1, entropy=1.0))
    with pytest.raises(ValueError, match="leave out quantize"):
        made(tiny("mixtral"), Savings(1, quantize=True))
    target, _ = made(tiny("llama"), Savings(1, drift=0.1, entropy=1.0))
    with pytest.raises(ValueError, match="no attention weights"):
        target.prefill([Prompt(TEXTS[0])], (0,), target.open(1, 64), Want(attention=frozenset([0])))


def test_numbers_of_few_bits() -> None:
    states = torch.tensor([[1.0, -0.6, 0.2], [1.0, -0.6, 0.2], [0.0, 0.0, 0.0]])
    found = quantized(states, torch.tensor([2, 8, 4]))
    assert found[0].tolist() == [1.0, -1.0, 0.0] and found[2].tolist() == [0.0, 0.0, 0.0]
    assert (found[1] - states[1]).abs().max() < 1 / 254 + 1e-6
    assert bits(torch.tensor([0.1, 0.5, 3.0])).tolist() == [2, 4, 8]


def test_the_records_of_committed_tokens_are_set_once(tiny) -> None:
    """And not in every forward, as there may be many thousands of them."""
    target = HFTarget(tiny("llama"))
    cache = target.open(1, 64)
    view = RecordingView(cache, 2, 3, torch.float32)
    target.prefill([Prompt(TEXTS[0])], (0,), cache, Want())
    length = cache.lengths[0]
    records = view.records(0, length + 4)
    assert set(records.depth.tolist()) == {2} and bool(records.kept.isnan().all())
    for each, value in ((records.depth, 1), (records.tokens, 5), (records.kept, 0.5)):
        each[:] = value
    assert view.records(0, length + 4).depth.tolist() == [1] * (length + 4)
    cache.lengths[0] += 2  # draft tokens that were accepted
    records = view.records(0, length + 4)
    assert records.depth.tolist() == [1] * length + [2, 2, 1, 1]
    assert records.tokens.tolist() == [5] * length + [-1, -1, 5, 5]
    assert records.kept.isnan().all(-1).tolist() == [False] * length + [True, True, False, False]
    view.release([0])
    cache.release([0])
    target.prefill([Prompt(TEXTS[0])], (0,), cache, Want())
    assert set(view.records(0, length).depth.tolist()) == {2}
