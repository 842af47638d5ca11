"""Forests, trees, shapes and the grower."""

from __future__ import annotations

import pytest
import torch

from outpace.core.claim import Drawn
from outpace.core.grower import Grower
from outpace.core.noise import KeyedNoise
from outpace.core.tree import Forest, Shape, TokenTree

# row 0: 0 -> 2, 2 -> 4, 2 -> 5; row 1: 1 -> 3
FOREST = Forest.of((-1, -1, 0, 1, 2, 2), 2)


def test_structure_is_derived_from_parents() -> None:
    assert FOREST.rows == (0, 1, 0, 1, 0, 0)
    assert FOREST.depths == (0, 0, 1, 1, 2, 2)
    assert FOREST.local == (0, 0, 1, 1, 2, 3)
    assert FOREST.nodes == ((0, 2, 4, 5), (1, 3))
    assert FOREST.children[2] == (4, 5)
    assert FOREST.path(5) == [0, 2, 5]
    assert not FOREST.is_chain and Forest.chain((2, 0)).is_chain


def test_a_node_sees_itself_and_its_ancestors() -> None:
    seen = FOREST.visible(0).int().tolist()
    assert seen == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]


def test_equal_structures_are_one_object() -> None:
    assert Forest.of([-1, 0, 1], 1) is Forest.of((-1, 0, 1), 1)
    assert Forest.chain((3,)) is Forest.chain((3,))
    assert Forest.chain((2, 1)).parents == (-1, -1, 0, 2, 1)


@pytest.mark.parametrize("parents", [(-1, 2, 1), (0, 0), (-1, -1)])
def test_a_node_comes_after_its_parent_and_roots_first(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        Forest.of(parents, 1)


@pytest.mark.parametrize("name", ["rows", "depths", "local", "nodes"])
def test_a_forest_that_was_not_checked_names_the_node_before_its_parent(name: str) -> None:
    with pytest.raises(ValueError, match="node 2 of the forest names parent 3; a parent comes before"):
        getattr(Forest((-1, 0, 3, 0), 1), name)


def test_match_goes_as_deep_as_any_repeated_token_allows() -> None:
    # 0 -> 1, 0 -> 2 with the same token; only 2 has a child
    tree = TokenTree(torch.tensor([9, 4, 4, 5]), Forest.of((-1, 0, 0, 2), 1))
    assert tree.match([[4, 5, 6]]) == [3]
    assert tree.match([[7]]) == [0]
    assert tree.match([[]]) == [0]


def test_shapes_name_children_by_rank() -> None:
    shape = Shape.branching((2, 1))
    assert shape.parents == (0, 0, 1, 2)
    assert shape.children == ((1, 2), (3,), (4,), (), ())
    assert shape.depth == 2 and Shape(()).depth == 0
    with pytest.raises(ValueError, match="growing order"):
        Shape((0, 1, 0))


def grown(**options: bool) -> TokenTree:
    noise = KeyedNoise([7], [1], [3])
    q = torch.tensor([[0.5, 0.3, 0.2]])
    grower = Grower(torch.tensor([1]), **options)
    first = grower.add_drawn([0], q, 2, noise)
    grower.add_drawn(first[:1], q, 1, noise)
    return grower.tree()


def test_drawn_nodes_leave_with_the_distribution_they_were_drawn_from() -> None:
    tree = grown()
    assert isinstance(tree.claim, Drawn)
    assert tree.claim.row == (-1, 0, 0, 1)
    assert tree.claim.replace == (False, False)
    assert tree.tokens[1] != tree.tokens[2]


def test_confidence_is_the_log_of_the_draft_probability() -> None:
    tree = grown(confidence=True)
    assert tree.confidence is not None
    q = torch.tensor([0.5, 0.3, 0.2])
    assert torch.allclose(tree.confidence[1:].exp(), q[tree.tokens[1:]])


def test_a_used_up_support_gives_fewer_children() -> None:
    grower = Grower(torch.tensor([0, 0]))
    q = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    nodes = grower.add_drawn([0, 1], q, 2, KeyedNoise([1, 2], [1, 1], [1, 1]))
    tree = grower.tree()
    assert len(nodes) == 3 and [len(row) for row in tree.forest.nodes] == [2, 3]
