"""The cache after a commit is the cache of a fresh prefill, whatever else is in the batch."""

from __future__ import annotations

import random
import weakref

import pytest
import torch

from outpace.core.contracts import Prompt, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.hf.target import HFTarget

EXACT = 1e-9


def some(length, seed=0):
    """Random tokens."""
    return torch.randint(3, 61, (length,), generator=torch.Generator().manual_seed(seed))


def bushy(roots, seed=0, size=12):
    """Random trees, one per root, of `size` nodes in all. Nodes of different rows alternate, and siblings may
    have the same token."""
    choice = random.Random(seed)
    parents = [-1] * len(roots)
    for node in range(len(roots), len(roots) + size):
        parents.append(choice.randrange(node))
    tokens = torch.cat((torch.stack(list(roots)), some(size, seed)))
    return TokenTree(tokens, Forest.of(parents, len(roots)))


def deepest(forest):
    """The deepest node of every row."""
    return [max(nodes, key=lambda node: forest.depths[node]) for nodes in forest.nodes]


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "deepseek_v3", "gpt2", "gptj", "gemma2"])
def test_cache_after_commit_is_that_of_a_fresh_prefill(name, tiny):
    target = HFTarget(tiny(name))
    slots, texts = (3, 1), [some(9, 1), some(17, 2)]
    cache = target.open(4, 64)
    target.prefill([Prompt(text) for text in texts], slots, cache, Want())
    for seed in range(3):
        tree = bushy([text[-1] for text in texts], seed)
        target.score(tree, slots, cache)
        leaves = deepest(tree.forest)
        cache.commit(tree, leaves, slots)
        texts = [
            torch.cat((text[:-1], tree.tokens[tree.forest.path(leaf)], some(1, seed)))
            for text, leaf in zip(texts, leaves, strict=True)
        ]
    fresh = target.open(4, 64)
    target.prefill([Prompt(text) for text in texts], slots, fresh, Want())
    assert cache.lengths == fresh.lengths
    for slot in slots:
        length = cache.lengths[slot]
        for here, there in zip(cache.views(slot, 0, length), fresh.views(slot, 0, length), strict=True):
            # keys and norms pass through float32 in the modelling code
            assert (here - there).abs().max() < 1e-5
    roots = TokenTree.roots(torch.stack([text[-1] for text in texts]))
    assert (
        target.score(roots, slots, cache).logits - target.score(roots, slots, fresh).logits
    ).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["llama", "mistral", "deepseek_v3", "falcon"])
def test_a_row_alone_scores_as_in_a_ragged_batch(name, tiny, float64_throughout):
    target = HFTarget(tiny(name))
    texts = [some(5, 1), some(30, 2), some(12, 3)]
    slots = (2, 4, 0)
    cache, alone = target.open(5, 64), target.open(1, 64)
    target.prefill([Prompt(text) for text in texts], slots, cache, Want())
    tree = bushy([text[-1] for text in texts], 5, 15)
    together = target.score(tree, slots, cache).logits
    for row, text in enumerate(texts):
        nodes = tree.forest.nodes[row]
        parents = [-1 if node < 3 else tree.forest.local[tree.forest.parents[node]] for node in nodes]
        own = TokenTree(tree.tokens[list(nodes)], Forest.of(parents, 1))
        target.prefill([Prompt(text)], (0,), alone, Want())
        assert (target.score(own, (0,), alone).logits - together[list(nodes)]).abs().max() < EXACT
        alone.commit(own, [-1], (0,))
        alone.release((0,))


def test_a_leaf_of_minus_one_keeps_nothing_and_forgets_the_tree(tiny):
    target = HFTarget(tiny("llama"))
    cache = target.open(2, 32)
    texts = [some(6, 1), some(8, 2)]
    target.prefill([Prompt(text) for text in texts], (0, 1), cache, Want())
    tree = bushy([text[-1] for text in texts], 1)
    before = target.score(tree, (0, 1), cache).logits
    cache.commit(tree, [-1, -1], (0, 1))
    assert cache.lengths == [5, 7]
    assert torch.equal(target.score(tree, (0, 1), cache).logits, before)


def test_a_released_slot_serves_another_sequence(tiny):
    target = HFTarget(tiny("mistral"))
    cache, fresh = target.open(2, 32), target.open(2, 32)
    target.prefill([Prompt(some(20, 1))], (1,), cache, Want())
    cache.release((1,))
    assert cache.lengths == [0, 0]
    text = some(9, 2)
    for each in (cache, fresh):
        target.prefill([Prompt(text)], (1,), each, Want())
    tree = bushy([text[-1]], 3)
    assert torch.equal(target.score(tree, (1,), cache).logits, target.score(tree, (1,), fresh).logits)


def test_long_prompts_are_read_in_chunks(tiny, reference, float64_throughout):
    model = tiny("gemma3_text", max_position_embeddings=2048)
    fresh = reference(model)
    target = HFTarget(model)
    texts = [some(1100, 1), some(40, 2), some(600, 3)]
    cache = target.open(3, 1200)
    tree, scores = target.prefill(
        [Prompt(text) for text in texts], (0, 1, 2), cache, Want(prompt_logits=True)
    )
    assert cache.lengths == [1099, 39, 599]
    for row, text in enumerate(texts):
        nodes = list(tree.forest.nodes[row])
        assert torch.equal(tree.tokens[nodes], text[:-1])
        assert (scores.logits[nodes] - fresh(text[:-1]).logits[0]).abs().max() < EXACT


def test_a_long_gap_is_a_prompt(tiny, reference, float64_throughout):
    model = tiny("mistral", max_position_embeddings=2048)
    fresh = reference(model)
    target = HFTarget(model)
    texts = [some(700, 1), some(3, 2)]
    cache = target.open(2, 1200)
    tree = bushy([text[-1] for text in texts], 1)
    logits = target.score(tree, (0, 1), cache, gap=[text[:-1] for text in texts]).logits
    assert cache.lengths == [699, 2]
    for node in range(len(tree)):
        path = tree.forest.path(node)
        text = torch.cat((texts[tree.forest.rows[node]][:-1], tree.tokens[path]))
        assert (logits[node] - fresh(text).logits[0, -1]).abs().max() < EXACT


def test_a_tree_already_read_costs_nothing(tiny):
    target = HFTarget(tiny("llama"))
    cache = target.open(1, 32)
    target.prefill([Prompt(some(6))], (0,), cache, Want())
    tree = bushy(some(1), 1)
    target.score(tree, (0,), cache)
    again = target.score(tree, (0,), cache)
    assert again.first == len(tree) and again.logits.shape == (0, target.vocab)


def test_only_keys_and_values_of_a_prompt_are_stored(tiny):
    target = HFTarget(tiny("llama"))
    tree, scores = target.prefill([Prompt(some(90)), Prompt(some(80))], (0, 1), target.open(2, 96), Want())
    assert [tree.tokens[list(nodes)].tolist() for nodes in tree.forest.nodes] == [
        some(89).tolist(),
        some(79).tolist(),
    ]
    kept = weakref.ref(tree.forest)
    del tree, scores
    assert kept() is None


def test_a_cache_grows_with_a_draft_that_is_larger(tiny):
    target = HFTarget(tiny("llama"))
    texts, roots = [some(9, 1), some(5, 2)], some(2, 3)
    tree = bushy(roots, 4)
    found = []
    for capacity in (64, 8):
        cache = target.open(2, capacity)
        target.prefill([Prompt(text) for text in texts], (0, 1), cache, Want())
        # the first nodes are in the cache already when the others need a larger one
        target.score(TokenTree(tree.tokens[:4], Forest.of(tree.forest.parents[:4], 2)), (0, 1), cache)
        found.append(target.score(tree, (0, 1), cache).logits)
        leaf = [nodes[-1] for nodes in tree.forest.nodes]
        cache.commit(tree, leaf, (0, 1))
        found.append(target.score(TokenTree.roots(roots), (0, 1), cache).logits)
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])


def test_invalid_calls_raise_at_the_call(tiny):
    target = HFTarget(tiny("llama"))
    cache = target.open(1, 16)
    with pytest.raises(ValueError, match="2 tokens or more"):
        target.prefill([Prompt(some(1))], (0,), cache, Want())
    target.prefill([Prompt(some(8))], (0,), cache, Want())
    target.score(bushy(some(1), 1, 4), (0,), cache)
    with pytest.raises(ValueError, match="commit that tree first"):
        target.score(bushy(some(1, 9), 2, 6), (0,), cache)
    with pytest.raises(ValueError, match="commit the tree scored before first"):
        target.score(bushy(some(1), 1, 5), (0,), cache, gap=[some(2)])
    with pytest.raises(AssertionError, match="only the first 5 nodes were scored"):
        cache.commit(bushy(some(1), 1, 8), [7], (0,))
