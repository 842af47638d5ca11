"""Blocks whose tokens attend to one another, in attention that is causal by cache position.

The tokens of a block are read several times in one forward, one copy of the block behind the other. The
tokens of a copy attend, besides the text, to those of the copy before it, as the tokens of the block do to
one another. All copies have the same inputs, so the outputs of the first layer are right in all copies but
the first; those of the next layer in all but the first two; and those of a model of L layers in copy L + 1.

Letters: n tokens of a block, L layers.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from outpace.models.forward.request import ForwardRequest
from outpace.models.forward.row_inputs import RowInputs


def in_copies(request: ForwardRequest, num_layers: int) -> ForwardRequest:
    """The same forward without two-way rows, for a model of L layers. The entries of its KV cache are right
    for the tokens before the blocks only."""
    copies, rows, order, at = num_layers + 1, list[RowInputs](), list[Tensor](), 0
    for row, size in zip(request.rows, request.sizes, strict=True):
        own = torch.arange(at, at + size)
        if row.two_way:
            gap, num = row.base - row.start, size - (row.base - row.start)
            assert row.depths is not None and row.visible is not None and len(row.depths) == num
            own = torch.cat((own[:gap], own[gap:].repeat(copies)))
            row = replace(
                row,
                end=row.base + num * copies,
                depths=row.depths.repeat(copies),
                visible=_visible(row.visible, copies),
                two_way=False,
            )
        rows.append(row)
        order.append(own)
        at += size
    read = torch.cat(order)
    features = None if request.features is None else request.features[read]
    return replace(request, rows=rows, tokens=request.tokens[read], features=features)


def _visible(block: Tensor, copies: int) -> Tensor:  # (n, n) -> (copies * n, copies * n) bool
    """Each copy sees the one before it; the first sees what it can of itself, and no output depends on it."""
    size = len(block)
    visible = torch.zeros(copies, size, copies, size, dtype=torch.bool)
    visible[0, :, 0] = block.tril()
    for copy in range(1, copies):
        visible[copy, :, copy - 1] = block
    return visible.view(copies * size, copies * size)
