"""The counted suffix tree against a search through the texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from outpace.indexes.candidates import CandidateTree
from outpace.indexes.compiled_loops import CompiledLoop
from outpace.recipes.training_free.suffix_decoding.suffix_tree import CHILD, COUNT, LENGTH, NEXT, SuffixTree

Count = Callable[[Sequence[Sequence[int]], Sequence[int]], int]


class Naive:
    """The requests a tree should hold, the oldest first."""

    def __init__(self, most_tokens: int) -> None:
        self.most, self.texts = most_tokens, list[list[int]]()
        self.open: dict[int, list[int]] = {}

    def extend(self, request: int, tokens: list[int]) -> None:
        tokens = tokens[-self.most :]
        while sum(map(len, self.texts)) + len(tokens) > self.most:
            self.evict()
        if request not in self.open:
            self.open[request] = []
            self.texts.append(self.open[request])
        self.open[request] += tokens

    def evict(self) -> None:
        gone = self.texts.pop(0)
        self.open = {request: text for request, text in self.open.items() if text is not gone}


def check(tree: SuffixTree, texts: Sequence[Sequence[int]], occurrences: Count) -> None:
    """Check all counts, the order of siblings, and the number of nodes."""
    seen = {
        tuple(text[i : i + n]) for text in texts for i in range(len(text)) for n in range(1, tree.depth + 1)
    }
    for part in seen:
        assert tree.count(part) == occurrences(texts, part), part
    for token in range(7):
        for part in [(token,), *((token, *part) for part in seen if len(part) < tree.depth)]:
            assert part in seen or tree.count(part) == 0
    assert tree.num_tokens == sum(map(len, texts)) and tree.num_requests == len(texts)
    assert tree.num_nodes <= 2 * tree.num_tokens
    nodes, reached, stack = tree.nodes, 0, [0]
    while stack:
        node = stack.pop()
        children, child = list[int](), int(nodes[node, CHILD])
        while child >= 0:
            children.append(child)
            child = int(nodes[child, NEXT])
        assert all(nodes[a, COUNT] >= nodes[b, COUNT] for a, b in pairwise(children))
        assert node == 0 or len(children) != 1 or nodes[node, COUNT] > nodes[children[0], COUNT]
        assert node == 0 or nodes[node, LENGTH] > 0
        reached += len(children)
        stack += children
    assert reached == tree.num_nodes


@pytest.mark.parametrize("seed", range(6))
def test_counts_are_those_of_all_substrings_after_any_history(
    loops: str, occurrences: Count, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tree, naive = SuffixTree(depth=int(rng.integers(1, 7)), max_tokens=90), Naive(90)
    alphabet = int(rng.integers(1, 5))
    for turn in range(60):
        request = int(rng.integers(0, 4))
        match rng.integers(0, 8):
            case 0:
                tree.finish(request)
                naive.open.pop(request, None)
            case 1 if naive.texts:
                tree.evict()
                naive.evict()
            case _:
                tokens = rng.integers(0, alphabet, rng.integers(0, 12)).tolist()
                if naive.texts and turn % 3 == 0:
                    tokens = naive.texts[-1][:10]  # repeated tokens
                tree.extend(request, tokens)
                naive.extend(request, tokens)
        if turn % 6 == 5:
            check(tree, [text for text in naive.texts], occurrences)
    while naive.texts:
        tree.evict()
        naive.evict()
    assert tree.num_nodes == tree.num_tokens == tree.num_requests == 0
    assert (tree.map.keys == -1).all()


def test_a_long_history_leaves_no_more_memory_than_a_short_one() -> None:
    rng = np.random.default_rng(0)
    tree = SuffixTree(max_tokens=2000)
    sizes: list[int] = []
    for request in range(120):
        tree.extend(request, rng.integers(0, 30, 300).tolist())
        tree.finish(request)
        sizes.append(tree.nbytes)
    assert sizes[-1] == sizes[20]
    assert sizes[-1] <= 2000 * 400
    assert sizes[-1] == sum(array.nbytes for array in tree.arrays.values())


def speculate_plainly(
    texts: Sequence[Sequence[int]],
    depth: int,
    context: list[int],
    most: int,
    factor: float,
    offset: float,
    floor: float,
    count: Count,
) -> tuple[float, int]:
    """Score and match length of the best chain, from counts alone; no two tokens have equal counts here."""
    best = (0.0, 0)
    for p in range(1, min(len(context), depth) + 1):
        at, weight, score = context[-p:], 1.0, 0.0
        if not count(texts, at):
            break
        for _ in range(min(most, int(factor * p + offset))):
            if len(at) == depth:
                break
            counts = {token: count(texts, [*at, token]) for token in range(6)}
            token = max(counts, key=lambda token: counts[token])
            weight *= counts[token] / count(texts, at)
            if weight < max(floor, 1e-9):
                break
            score += weight
            at = [*at, token]
        if score >= best[0] and score:
            best = score, p
    return best


def test_a_chain_has_the_best_score_over_all_match_lengths(loops: str, occurrences: Count) -> None:
    # no two tokens follow anything equally often, so that a chain is the only one
    texts = [[1, 2, 3, 4, 1, 2, 3, 5], [2, 3, 4, 1, 2, 3, 4], [9, 1, 2, 3, 4, 1]]
    tree = SuffixTree(depth=6)
    for request, text in enumerate(texts):
        tree.extend(request, text)
    for context in ([1, 2], [3], [8, 1, 2, 3], [7], [4, 1, 2, 3, 4], [1, 2, 3, 4, 1, 2, 3]):
        for most, factor, offset, floor in ((64, 1.0, 0.0, 0.1), (2, 1.0, 1.0, 0.1), (64, 2.0, 0.5, 0.7)):
            found = tree.speculate(
                context, most, max_spec_factor=factor, max_spec_offset=offset, min_token_prob=floor
            )
            score, matched = speculate_plainly(texts, 6, context, most, factor, offset, floor, occurrences)
            assert found.expected_accepted == pytest.approx(score) and found.matched == matched
            assert found.parents == list(range(-1, len(found.tokens) - 1))
            assert found.weights == pytest.approx(weights(found, texts, context, occurrences))


def weights(
    found: CandidateTree, texts: Sequence[Sequence[int]], context: list[int], count: Count
) -> list[float]:
    """The weight of each node by counting."""
    paths: list[list[int]] = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else context[len(context) - found.matched :]), token])
    return [count(texts, path) / count(texts, context[len(context) - found.matched :]) for path in paths]


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_has_the_nodes_of_the_largest_weights(loops: str, occurrences: Count, seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = [rng.choice(4, 40, p=[0.5, 0.3, 0.15, 0.05]).tolist() for _ in range(3)]
    tree = SuffixTree(depth=8)
    for request, text in enumerate(texts):
        tree.extend(request, text)
    for _ in range(10):
        context = rng.integers(0, 4, 8).tolist()
        found = tree.speculate(context, 12, max_spec_factor=3.0, tree=True, min_token_prob=0.05)
        assert found.weights == pytest.approx(weights(found, texts, context, occurrences))
        assert all(a >= b for a, b in pairwise(found.weights)) and min(found.weights) >= 0.05
        budget = min(12, 3 * found.matched)
        suffix = context[len(context) - found.matched :]
        every = []
        level = [suffix]
        while level := [
            [*at, t] for at in level for t in range(4) if len(at) < 8 and occurrences(texts, [*at, t])
        ]:
            every += [occurrences(texts, path) / occurrences(texts, suffix) for path in level]
        best = [weight for weight in sorted(every, reverse=True) if weight >= 0.05][:budget]
        assert found.weights == pytest.approx(best)
        longer = tree.speculate(context, 12, max_spec_factor=3.0, tree=False, min_token_prob=0.05)
        assert found.expected_accepted >= longer.expected_accepted


def test_drafts_grow_with_the_match(loops: str) -> None:
    text = list(range(40))
    tree = SuffixTree()
    tree.extend(0, text)
    lengths = [len(tree.speculate(text[:p]).tokens) for p in range(1, 20)]
    assert lengths == list(range(1, 20))
    assert tree.speculate([99, 5, 6], max_spec_factor=0.0, max_spec_offset=3.0) == CandidateTree(
        [7, 8, 9], [-1, 0, 1], [1.0] * 3, 2
    )
    assert (
        tree.speculate([5, 99]) == tree.speculate([]) == tree.speculate(text) == CandidateTree([], [], [], 0)
    )


def test_the_own_text_so_far_is_a_match_that_goes_nowhere(loops: str) -> None:
    tree = SuffixTree()
    tree.extend(7, [1, 2, 3, 1, 2])
    found = tree.speculate([1, 2, 3, 1, 2])
    assert found.matched == 2 and found.tokens == [3, 1] and found.weights == [0.5, 0.5]


@pytest.mark.parametrize("kind", [False, True])
def test_places_outside_of_the_tree_that_nothing_follows_make_all_less_likely(loops: str, kind: bool) -> None:
    tree = SuffixTree()
    for request, text in enumerate([[1, 2, 3, 4], [1, 2, 5, 6], [7, 8, 9]]):
        tree.extend(request, text)
        tree.finish(request)
    found = tree.speculate([1, 2], max_spec_offset=2.0, tree=kind, extra_occurrences=2)
    assert (found.tokens, found.weights) == (([3, 5, 4, 6], [0.25] * 4) if kind else ([3, 4], [0.25] * 2))
    # matched in the middle of an edge
    alone = tree.speculate([0, 7], max_spec_offset=2.0, tree=kind, extra_occurrences=1)
    assert (alone.tokens, alone.weights) == ([8, 9], [0.5] * 2)
    assert (
        tree.speculate([0, 7], max_spec_offset=2.0, tree=kind, extra_occurrences=1, min_token_prob=0.6).tokens
        == []
    )


def test_both_ways_of_running_build_the_same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    moves = [
        (int(rng.integers(0, 5)), rng.zipf(1.5, int(rng.integers(1, 30))).clip(max=9).tolist())
        for _ in range(80)
    ]

    def build() -> tuple[SuffixTree, list[CandidateTree]]:
        tree, drafts = SuffixTree(depth=12, max_tokens=400), list[CandidateTree]()
        for request, tokens in moves:
            tree.extend(request, tokens)
            drafts += [tree.speculate(tokens, tree=True), tree.speculate(tokens[:3], max_spec_factor=2.0)]
        return tree, drafts

    compiled = build()
    monkeypatch.setattr(CompiledLoop, "__call__", lambda self, *arguments: self.plain(*arguments))
    plain = build()
    assert compiled[1] == plain[1]
    for name, array in compiled[0].arrays.items():
        assert np.array_equal(array, plain[0].arrays[name]), name
