"""EAGLE: the static tree. Heads, drafts and distributions are tested with their parts."""

from __future__ import annotations

from outpace.recipes.heads.eagle import SHAPE

# rank path of a node -> its number of children in the paper's tree
CHILDREN = {
    **{"": 4, "0": 3, "1": 2, "2": 2, "3": 1},
    **{"00": 3, "01": 2, "02": 2, "10": 1},
    **{"000": 3, "0000": 2},
}


def test_the_static_tree_is_the_papers() -> None:
    paths = {0: ""}
    for node, children in enumerate(SHAPE.children):
        for rank, child in enumerate(children):
            paths[child] = f"{paths[node]}{rank}"
    found = {paths[node]: len(children) for node, children in enumerate(SHAPE.children) if children}
    assert found == CHILDREN and len(paths) == 26
