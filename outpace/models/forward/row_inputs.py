"""The tokens of one row in a forward: where their keys and values are stored, and what they attend to.

Letters: n tokens of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(eq=False, slots=True)
class RowInputs:
    """The n tokens of one row, whose keys and values are written to a slot of the KV cache.

    Attention masks follow from cache positions and depths, and so do position ids unless the row has a
    `shift` or `positions`: those of an image, or of a text that was cut, differ from cache positions."""

    slot: int
    start: int  # cache position of the first token
    end: int  # cache position after the last token
    base: int  # cache positions before `base` hold committed tokens, visible to every draft node
    depths: Tensor | None = None  # (end - base,) depths of all nodes of the row's tree so far; None: a chain
    # (end - base, end - base) bool, which nodes (columns) each node (row) attends to; None: a chain
    visible: Tensor | None = None
    top: int = 0  # largest of the row's cache positions and base + depths
    two_way: bool = (
        False  # `visible` lets nodes attend to nodes after them, as in a block of a diffusion model
    )
    shift: int = 0  # position ids minus cache positions (of draft nodes: minus base + depth)
    positions: Tensor | None = None  # (A, n) position ids by axis, as of M-RoPE; these take precedence
