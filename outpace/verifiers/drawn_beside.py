"""The claim of drafts whose drafter says what it would draw after every node."""

from __future__ import annotations

from outpace.core.claim import DrawnBeside
from outpace.core.tree import TokenTree


def drawn_beside(tree: TokenTree) -> DrawnBeside:
    """The claim of a tree. ValueError if it is another one."""
    if not isinstance(tree.claim, DrawnBeside):
        raise ValueError(
            "the draft does not say what its drafter would draw after every node: let "
            "DraftModel(reads_leaves=True) draft"
        )
    return tree.claim
