"""What one decoding step drafted in one row, and what was accepted of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outpace.core.contracts import Step


@dataclass(frozen=True, slots=True)
class RowStep:
    """The draft tree of one row in one step, without its root; n draft nodes."""

    draft: list[int]  # (n,) token ids
    parents: list[int]  # (n,) index of each node's parent; -1: the root. A node comes after its parent
    accepted: list[int]  # indices of the accepted nodes, from the root down
    is_prediction: bool  # the draft is the caller's prediction, not the method's own
    # text that each generated token added: those of the accepted nodes, then the bonus token's. A token that
    # ends within a character adds nothing, and the token that completes it the whole character
    texts: list[str]

    @staticmethod
    def of(
        step: Step, row: int, num_accepted: int, texts: list[str], predicted: Sequence[int] = ()
    ) -> RowStep:
        """The record of a step's row, of whose draft tokens `num_accepted` were added to the text, and
        `predicted` came from the caller's prediction."""
        tree = step.draft.tree
        forest = tree.forest
        nodes, leaf = forest.nodes[row][1:], step.verdict.leaf[row]
        return RowStep(
            draft=tree.tokens[list(nodes)].tolist(),
            parents=[forest.local[forest.parents[node]] - 1 for node in nodes],
            accepted=[forest.local[node] - 1 for node in forest.path(leaf)[1 : num_accepted + 1]],
            is_prediction=bool(predicted),
            texts=texts,
        )
