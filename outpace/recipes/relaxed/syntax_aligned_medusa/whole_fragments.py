"""Typical acceptance of whole fragments (Xu et al. 2025): what is accepted ends with a token that ends a
fragment of the text, such as an identifier or an operator of a program."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.tree import TokenTree
from outpace.verifiers.typical import Path, PlainDraft, Typical, TypicalSteps


class WholeFragments(Typical):
    """Implementation of core.contracts.Verifier: the path that typical acceptance takes, up to its last token
    `fragment`; nothing of it if there is none. The bonus token follows what stays."""

    def __init__(self, epsilon: float, delta: float, fragment: int) -> None:
        super().__init__(epsilon, delta)
        self._fragment = fragment

    def kept(self, tree: TokenTree, leaves: Sequence[int]) -> list[int]:
        tokens, forest = tree.token_list(), tree.forest
        ends = list[int]()
        for row, leaf in enumerate(leaves):
            whole = [node for node in forest.path(leaf)[1:] if tokens[node] == self._fragment]
            ends.append(whole[-1] if whole else row)
        return ends


class WholeFragmentSteps(TypicalSteps):
    """Implementation of core.contracts.StepReference: what one step of `WholeFragments` adds to a text."""

    description = "typical acceptance of whole fragments, up to the last token that ends one"

    def __init__(self, epsilon: float, delta: float, draft: PlainDraft, fragment: int) -> None:
        super().__init__(epsilon, delta, draft)
        self._fragment = fragment

    def kept(self, path: Path) -> Path:
        while path and path[-1] != self._fragment:
            path = path[:-1]
        return path
