"""The choice of a batch's drafts: its time is that of one step of all rows."""

from __future__ import annotations

from itertools import accumulate, product
from random import Random
from statistics import mean

import pytest

from outpace.controllers.source_choice import RowOptions, Size, SourceChoice

LONGEST, DEPTH = 3, 2


def controller(
    verify: list[float], forward: float, token: float, depth: int = DEPTH, levels: int = 1
) -> SourceChoice:
    """A controller that has measured these seconds: of steps by their draft tokens, of a forward of the draft
    model, which drafts so many `levels`, and of a token that it reads."""
    made = SourceChoice(LONGEST, depth, levels_per_forward=levels)
    made._verify_seconds, made._token_seconds = verify, token
    made._draft_seconds = [forward * count for count in made._forwards]
    return made


def row(looked_up: list[float], drafted: list[float], read: float = 0.0) -> RowOptions:
    """A row by the probabilities that its tokens are reached."""
    return RowOptions([*accumulate([1.0, *looked_up])], [*accumulate([1.0, *drafted])], read)


def fastest(made: SourceChoice, rows: list[RowOptions]) -> float:
    """Tokens per second of the best of all choices."""
    choices: list[list[Size]] = [
        [(count, 0) for count in range(len(each.looked_up))]
        + [(0, depth) for depth in range(1, len(each.drafted))]
        for each in rows
    ]
    return max(made._speed(rows, sizes) for sizes in product(*choices))


def alone(made: SourceChoice, each: RowOptions, num_rows: int) -> Size:
    """The best draft of a row if all rows did the same."""
    sizes: list[Size] = [(count, 0) for count in range(len(each.looked_up))]
    sizes += [(0, depth) for depth in range(1, len(each.drafted))]
    return max(sizes, key=lambda size: made._speed([each] * num_rows, [size] * num_rows))


def test_the_drafts_of_a_batch_are_nearly_the_fastest_of_all_choices() -> None:
    random, shares, shares_alone = Random(0), list[float](), list[float]()
    for _ in range(60):
        rows = list[RowOptions]()
        for _ in range(3):
            match, draft = random.random(), random.random()
            reached = [match**level for level in range(1, 1 + random.randrange(LONGEST + 1))]
            rows.append(row(reached, [draft**level for level in range(1, 1 + DEPTH)], random.random()))
        step = random.uniform(0.01, 0.3)
        verify = [1 + step * (nodes // 4) for nodes in range(3 * LONGEST + 1)]  # padded sizes
        made = controller(verify, random.uniform(0.01, 0.4), 0.01)
        made._lost = 1e9  # nothing is tried
        sizes = made._sizes(range(3), rows)
        best = fastest(made, rows)
        shares.append(made._speed(rows, sizes) / best)
        shares_alone.append(made._speed(rows, [alone(made, each, 3) for each in rows]) / best)
    assert mean(shares) > 0.97, shares
    assert mean(shares) > mean(shares_alone) + 0.02, (mean(shares), mean(shares_alone))


def test_rows_share_the_forwards_of_the_draft_model() -> None:
    """A draft that is too slow for one row is worth its time for eight."""
    alike = row([], [0.6, 0.4])
    made = controller([1.0 + 0.01 * nodes for nodes in range(100)], 0.8, 0.0)
    made._lost = 1e9
    assert made._sizes([0], [alike]) == [(0, 0)]
    made = controller([4.0 + 0.01 * nodes for nodes in range(100)], 0.8, 0.0)
    made._lost = 1e9
    assert all(depth for _, depth in made._sizes(range(8), [alike] * 8))


def test_one_row_that_repeats_does_not_pay_for_padding_that_all_would_need() -> None:
    """If all rows drafted, the forward would have a larger padded size; one draft fits into this one."""
    repeats, other = row([0.9, 0.8, 0.7], []), row([], [])
    verify = [1.0 if nodes <= 3 else 4.0 for nodes in range(13)]
    made = controller(verify, 0.0, 0.0, depth=0)
    assert made._sizes(range(4), [repeats, other, other, other]) == [(3, 0), (0, 0), (0, 0), (0, 0)]


@pytest.mark.parametrize("limit", [0, 1])
def test_rows_that_may_not_draft_do_not(limit: int) -> None:
    made = controller([1.0] * 9, 0.0, 0.0)
    sizes = made._sizes([0, 1], [row([], []), row([0.9] * limit, [])])
    assert sizes == [(0, 0), (limit, 0)]


def test_further_tokens_of_a_block_cost_their_verification_alone() -> None:
    """A draft model that drafts a token in each forward is too slow for a second one; a block is not, until
    the target's forward gets slower."""
    alike = row([], [0.9, 0.5, 0.4])
    for levels, depth in ((1, 1), (3, 2)):
        made = controller([2.0, 2.0, 2.0, 5.0], 1.0, 0.1, depth=3, levels=levels)
        assert made._sizes([0], [alike]) == [(0, depth)]
    read_alike = controller([2.0] * 4, 0.0, 1.0, depth=3, levels=3)
    tokens = [read_alike._others([alike], [(0, depth)]).read for depth in (1, 2, 3)]
    assert tokens == [3.0, 3.0, 3.0]  # the whole block is read at any length
