"""Attention of several rows in one call gives the logits of a call for each row."""

from __future__ import annotations

import random

import pytest
import torch

from outpace.core.contracts import Prompt, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.eager import attention, padded_attention
from outpace.models.eager.padded_attention import is_worth_padding
from outpace.models.hf.target import HFTarget
from tests.tiers import only

ROUNDING = 1e-11  # of logits of about 1, in float64
NAMES = ["llama", "mistral", "gemma3_text", "gpt2", "deepseek_v3", "gemma4_text", "smollm3", "llama4_text"]
SLOTS = (2, 0, 3)


def some(length, seed=0):
    """Random tokens."""
    return torch.randint(3, 61, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Lets attention choose as on a GPU; returns the numbers of rows of the calls that were padded."""
    calls = []

    def padded(query, keys, *rest):
        calls.append(len(keys))
        return padded_attention.padded_attention(query, keys, *rest)

    gpu = torch.device("cuda")
    monkeypatch.setattr(attention, "is_worth_padding", lambda masks, device: is_worth_padding(masks, gpu))
    monkeypatch.setattr(attention, "padded_attention", padded)
    return calls


def trees(kind, rng):
    """Trees of three rows with 0 to 12 draft tokens each."""
    for below in (0, 5, 12, 30):
        if kind == "tree":
            forest = Forest.of([-1, -1, -1, *(rng.randrange(node + 3) for node in range(below))], 3)
        else:
            forest = Forest.chain(tuple(rng.randrange(below + 1) for _ in SLOTS))
        yield TokenTree(some(len(forest), below), forest)


@pytest.mark.parametrize("kind", ["tree", "chain"])
@pytest.mark.parametrize("name", only(["llama", "mistral", "gemma3_text", "gpt2"], NAMES))
def test_rows_of_different_lengths_score_as_with_a_call_for_each(name, kind, tiny, as_on_a_gpu):
    target, rng = HFTarget(tiny(name)), random.Random(1)
    if target.chains_only and kind == "tree":
        pytest.skip("it reads no trees")
    as_on_a_gpu.clear()  # what loading compares
    caches = together, _ = [target.open(4, 90) for _ in range(2)]

    def both(read):
        """What this reads with one call for all rows, and with a call for each."""
        found = read(together)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention, "is_worth_padding", lambda *_: False)
            return found, read(caches[1])

    prompts = [Prompt(some(length, length)) for length in (4, 30, 13)]
    both(lambda cache: target.prefill(prompts, SLOTS, cache, Want()))
    for tree in trees(kind, rng):
        padded, apart = both(lambda cache, tree=tree: target.score(tree, SLOTS, cache).logits)
        assert (padded - apart).abs().max() < ROUNDING
        leaf = [rng.choice(nodes) for nodes in tree.forest.nodes]
        for cache in caches:
            cache.commit(tree, leaf, SLOTS)
    assert set(as_on_a_gpu) == ({3} if target.forward.packs else set())


@pytest.mark.parametrize(("name", "wanted"), [("gemma2", ()), ("gpt_oss", ()), ("llama", (0, 1))])
def test_weights_that_no_fused_kernel_gives_are_computed_row_by_row(name, wanted, tiny, as_on_a_gpu):
    target = HFTarget(tiny(name))
    cache = target.open(4, 90)
    target.prefill([Prompt(some(length)) for length in (4, 20)], (0, 1), cache, Want())
    as_on_a_gpu.clear()
    target.score(TokenTree(some(2), Forest.chain((0, 0))), (0, 1), cache, Want(attention=frozenset(wanted)))
    assert not as_on_a_gpu


@pytest.mark.parametrize(
    ("gaps", "padded"),
    [((1, 0, 0, 0, 0), True), ((40, 0, 0, 0, 0), False), ((40, 40), True), ((70, 70), False)],
    ids=["alike", "a prompt beside tokens", "two prompts", "with masks that are not stored"],
)
def test_rows_are_padded_where_that_computes_little_more(gaps, padded, tiny, as_on_a_gpu):
    target, slots = HFTarget(tiny("llama")), range(len(gaps))
    tree = TokenTree(some(len(gaps)), Forest.chain((0,) * len(gaps)))
    as_on_a_gpu.clear()
    target.score(tree, slots, target.open(len(gaps), 90), gap=[some(gap) for gap in gaps])
    assert bool(as_on_a_gpu) == padded


def test_on_a_cpu_each_row_has_a_call_of_its_own(tiny, monkeypatch):
    target = HFTarget(tiny("llama"))
    monkeypatch.setattr(attention, "padded_attention", None)
    cache = target.open(2, 90)
    target.score(TokenTree(some(2), Forest.chain((0, 0))), (0, 1), cache)
