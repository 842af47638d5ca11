"""DuoDecoding's draft (Lv et al. 2025): several greedy sequences with different first tokens, more of them
and shorter ones where the draft model is less sure.

Letters: R rows with a draft, K most probable first tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.grower import Grower
from outpace.core.tree import TokenTree
from outpace.drafters.model.grow import Read, going_on
from outpace.drafters.model.long_chains import lengthen, logits_after
from outpace.sampling.topk import at_least_float32, largest, top


def sequences(ctx: Context, plan: Plan, read: Read, *, most: int) -> TokenTree:
    """A draft (drafters.model.grow.Growth) of `plan.depth` tokens in each row, in up to `most` sequences of
    equal length. All tokens are chosen, so that they carry no claim.

    The first sequence is the most probable one, and its second token is known before the number of sequences
    is; so the others are one forward behind it."""
    grower = Grower(ctx.roots)
    rows = [row for row, depth in enumerate(plan.depth) if depth]
    if not rows:
        return grower.tree()
    logits = at_least_float32(logits_after(grower, ctx, read, rows))
    probs, tokens = top(logits.softmax(-1), min(most, logits.shape[-1]))  # (R, K) each
    begin = len(grower)
    heads = dict(zip(rows, grower.add_chosen(rows, tokens[:, 0]), strict=True))  # row -> its best first token
    open_heads = [head for head in going_on(ctx, grower, begin) if plan.depth[grower.rows[head]] > 1]
    second_probs, second_tokens = dict.fromkeys(rows, 1.0), dict[int, int]()
    if open_heads:
        long = [grower.rows[head] for head in open_heads]
        after = at_least_float32(logits_after(grower, ctx, read, open_heads)).softmax(-1)
        for row, prob, token in zip(long, *largest(after), strict=True):
            second_probs[row], second_tokens[row] = prob, token
    first_probs = dict(zip(rows, probs.tolist(), strict=True))
    counts = {
        row: num_sequences(first_probs[row], first_probs[row][0] * second_probs[row], plan.depth[row])
        for row in rows
    }
    begin, missing = len(grower), dict[int, int]()  # node -> tokens that its sequence lacks
    if longer := [row for row in second_tokens if plan.depth[row] > counts[row]]:
        second = torch.tensor([second_tokens[row] for row in longer], device=tokens.device)
        nodes = grower.add_chosen([heads[row] for row in longer], second)
        missing |= {node: plan.depth[row] // counts[row] - 2 for node, row in zip(nodes, longer, strict=True)}
    others = [(index, rank) for index, row in enumerate(rows) for rank in range(1, counts[row])]
    if others:
        at = [rows[index] for index, _ in others]
        nodes = grower.add_chosen(at, tokens[tuple(zip(*others, strict=True))])
        missing |= {node: plan.depth[row] // counts[row] - 1 for node, row in zip(nodes, at, strict=True)}
    if missing:
        lengthen(grower, ctx, read, begin, missing, sampled=False)
    return grower.tree()


def num_sequences(first: Sequence[float], both: float, budget: int) -> int:
    """How many sequences a draft of `budget` tokens has, a divisor of it. `first`: the draft probabilities of
    the most probable first tokens, in decreasing order; `both`: of the two first tokens of the most probable
    sequence together. A further sequence is one whose first token is more probable than that pair."""
    count = 1 + sum(prob > both for prob in first[1:])
    return max(number for number in range(1, count + 1) if budget % number == 0)
