"""The request for one forward of a model.

Letters: N tokens of all rows, n tokens of one row, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from outpace.core.contracts import NOTHING, Want
from outpace.models.forward.row_inputs import RowInputs


@dataclass(eq=False, slots=True)
class ForwardRequest:
    """One forward over tokens of several rows, which a `Backend` runs."""

    rows: list[RowInputs]
    nodes: list[int]  # per row: outputs are wanted at its last `nodes[i]` tokens
    tokens: Tensor  # (N,) int64, row by row
    want: Want = NOTHING  # outputs besides logits
    logits: bool = True  # false: the LM head is not run
    features: Tensor | None = None  # (N, D) input of a draft head, or with `after` of the later layers
    after: int | None = None  # the forward begins after this layer, whose outputs are `features`
    embeds: Tensor | None = None  # (N, D) inputs in place of the embeddings of `tokens`

    @property
    def sizes(self) -> list[int]:
        """Number of tokens of each row."""
        return [row.end - row.start for row in self.rows]

    @property
    def is_plain(self) -> bool:
        """Whether the inputs are token ids at positions that follow from cache positions and depths. Compiled
        backends run only such requests themselves: an input of a new kind has to be looked for here."""
        return self.embeds is None and not any(row.shift or row.positions is not None for row in self.rows)

    def by_row(self) -> list[ForwardRequest]:
        """The same request as one for each row."""
        sizes = self.sizes
        tokens, features, embeds = (
            [None] * len(sizes) if values is None else values.split(sizes)
            for values in (self.tokens, self.features, self.embeds)
        )
        return [
            replace(self, rows=[row], nodes=[num], tokens=ids, features=states, embeds=inputs)
            for row, num, ids, states, inputs in zip(
                self.rows, self.nodes, tokens, features, embeds, strict=True
            )
        ]
