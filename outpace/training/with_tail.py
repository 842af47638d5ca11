"""Runs a head with a tail over whole texts as in drafting: forwards for the first draft tokens, each on the
outputs of the one before, and then the tail.

Letters: R texts, T tokens, C = T - 1 columns, M columns whose outputs are wanted, F size of a feature.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from outpace.models.heads.draft_head import DraftHead
from outpace.training.lessons.lesson import following
from outpace.training.unrolled import UnrolledStep, unrolled


def with_tail(
    head: DraftHead,
    tokens: Tensor,  # (R, T) int64
    features: Tensor,  # (R, C, F) of the target at tokens 0 to C - 1
    columns: Tensor,  # (R, C) bool, true at the M columns whose outputs are wanted
    num_steps: int,
    *,
    detached: bool = False,  # no gradient through the head's outputs as inputs of the next step
) -> Iterator[UnrolledStep]:
    """The outputs at `num_steps` steps, of which the last ones are the tail's."""
    count = head.levels_with_forwards(num_steps)
    states: list[Tensor] = []
    for each in unrolled(head, tokens, features, columns, count, detached=detached):
        states.append(each.features if head.tail_layer == head.state_layer else each.states)
        yield each
    if count == num_steps:
        return
    reads = range(count - head.tail_reads, count)
    read = torch.stack([following(tokens, 2 + step)[columns] for step in reads], 1)
    above = torch.stack([states[step] for step in reads], 1)
    found = head.tail(head.embedded(read).detach().to(above.dtype), above, num_steps - count)
    for step, outputs in enumerate(found.unbind(1), count):
        yield UnrolledStep(step, outputs, outputs, outputs)
