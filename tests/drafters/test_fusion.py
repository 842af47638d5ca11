"""Merged trees are the union of their paths, keep what was drawn, and cut what is reached least."""

from __future__ import annotations

from random import Random

import pytest
import torch

from outpace.core.claim import Drawn
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.compose.fusion import Fusion

Path = tuple[int, ...]


def paths(tree: TokenTree) -> list[list[Path]]:
    """Per row the tokens on the way to each node."""
    tokens, found = tree.tokens.tolist(), [list[Path]() for _ in range(tree.forest.num_rows)]
    for node in range(tree.forest.num_rows, len(tree)):
        found[tree.forest.rows[node]].append(tuple(tokens[each] for each in tree.forest.path(node)[1:]))
    return found


def random_tree(random: Random, rows: int, nodes: int, vocab: int = 3) -> TokenTree:
    """No two siblings are equal."""
    parents, tokens, seen = [-1] * rows, [0] * rows, set()
    for _ in range(nodes):
        parent, token = random.randrange(len(parents)), random.randrange(vocab)
        if (parent, token) not in seen:
            seen.add((parent, token))
            parents.append(parent)
            tokens.append(token)
    confidence = torch.tensor([0.0] * rows + [-random.random() for _ in tokens[rows:]])
    return TokenTree(torch.tensor(tokens), Forest.of(parents, rows), confidence)


def below(tree: TokenTree, row: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of one row's nodes, as indexes give them."""
    nodes = tree.forest.nodes[row]
    place = {node: index - 1 for index, node in enumerate(nodes)}
    return tree.tokens[list(nodes[1:])].tolist(), [place[tree.forest.parents[node]] for node in nodes[1:]]


@pytest.mark.parametrize("seed", range(30))
def test_a_merged_tree_is_the_union_of_paths_without_duplicates(seed: int) -> None:
    random = Random(seed)
    one, other = random_tree(random, 2, 12), random_tree(random, 2, 12)
    fusion = Fusion(one)
    for row in range(2):
        tokens, parents = below(other, row)
        fusion.merge(row, tokens, parents, [0.1] * len(tokens))
    merged = fusion.tree()
    for row in range(2):
        found = paths(merged)[row]
        assert len(set(found)) == len(found)
        assert set(found) == {*paths(one)[row], *paths(other)[row]}
    assert merged.tokens[: len(one)].tolist() == one.tokens.tolist()


@pytest.mark.parametrize("seed", range(30))
def test_cutting_keeps_the_nodes_reached_most_likely_and_their_parents(seed: int) -> None:
    random = Random(seed)
    one, other = random_tree(random, 2, 14), random_tree(random, 2, 14)
    fusion = Fusion(one)
    for row in range(2):
        tokens, parents = below(other, row)
        probabilities: list[float] = []
        for parent in parents:
            probabilities.append((probabilities[parent] if parent >= 0 else 1.0) * random.random())
        fusion.merge(row, tokens, parents, probabilities)
    whole, most = fusion.tree(), 7
    reach = dict(zip([(r, p) for r in range(2) for p in paths(whole)[r]], [0.0] * 99, strict=False))
    for node in range(2, len(whole)):
        path = whole.forest.path(node)
        reach[whole.forest.rows[node], tuple(whole.tokens[path[1:]].tolist())] = fusion.path_probs[node]
        assert fusion.path_probs[node] <= fusion.path_probs[whole.forest.parents[node]] + 1e-12
    cut = fusion.tree(most)
    for row in range(2):
        kept = set(paths(cut)[row])
        assert len(kept) == min(most, len(paths(whole)[row]))
        assert all(path[:-1] in kept or len(path) == 1 for path in kept)
        dropped = [probability for (r, path), probability in reach.items() if r == row and path not in kept]
        assert min(reach[row, path] for path in kept) >= max(dropped, default=0.0)


def test_what_was_drawn_stays_with_its_claim() -> None:
    q = torch.full((2, 4), 0.25)
    claim = Drawn(q, (-1, 0, 0, 1), (False, False))
    tree = TokenTree(torch.tensor([0, 1, 2, 3]), Forest.of([-1, 0, 0, 1], 1), None, claim)
    fusion = Fusion(tree)
    # token 2 becomes the drawn node with that token; tokens 1, below it, and 3 become new nodes
    fusion.merge(0, [2, 1, 3], [-1, 0, -1], [0.9, 0.8, 0.7])
    whole, cut, least = fusion.tree(), fusion.tree(4), fusion.tree(1)
    for found, size in ((whole, 6), (cut, 5), (least, 4)):
        assert len(found) == size and found.tokens[:4].tolist() == [0, 1, 2, 3]
        assert isinstance(found.claim, Drawn) and found.claim.q is q
        assert found.claim.row == (-1, 0, 0, 1, -1, -1)[:size]
    assert paths(whole)[0][3:] == [(2, 1), (3,)] and paths(cut)[0][3:] == [(2, 1)]
