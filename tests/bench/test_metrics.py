"""Counts and figures of steps written by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from outpace.bench.measure.metrics import Counts, StepCost, StepRecord, first_difference, repetition
from outpace.core.tree import Forest

SECONDS = {"draft": 0.010, "score": 0.020, "warp": 0.001, "verify": 0.002, "commit": 0.003, "observe": 0.004}


def record(
    lengths: tuple[int, ...], leaf: tuple[int, ...], generated: tuple[int, ...], forwards: int = 0
) -> StepRecord:
    return StepRecord(Forest.chain(lengths), leaf, generated, forwards, 0.006, SECONDS)


def test_mean_acceptance_length_includes_the_bonus_token() -> None:
    counts = Counts.of([record((4,), (2,), (3,)), record((4,), (0,), (1,))])
    assert counts.mean_acceptance_length == 2.0  # 2 accepted in 2 steps, and one bonus token each
    assert Counts.of([record((0,), (0,), (1,))] * 3).mean_acceptance_length == 1.0


def test_counts_of_steps_written_by_hand() -> None:
    figures = Counts.of(
        [record((3,), (2,), (3,)), record((2,), (2,), (3,)), record((0,), (0,), (1,))]
    ).figures()
    assert figures["drafted"] == 5 and figures["accepted"] == 4 and figures["generated"] == 7
    assert figures["acceptance_rate"] == 4 / 5
    assert figures["mean_acceptance_length"] == pytest.approx(7 / 3)
    assert figures["mean_acceptance_length_of_drafting_steps"] == 1 + 4 / 2
    # among the two steps that drafted: position 3 was drafted once and refused
    assert figures["acceptance_by_position"] == [1.0, 1.0, 0.0]
    assert figures["acceptance_by_position_conditional"] == [1.0, 1.0, 0.0]


def test_acceptance_by_position_is_unconditional_and_the_other_is_conditional() -> None:
    # three steps of three drafts, accepting 0, 1 and 2
    figures = Counts.of([record((3,), (leaf,), (leaf + 1,)) for leaf in range(3)]).figures()
    assert figures["acceptance_by_position"] == pytest.approx([2 / 3, 1 / 3, 0])
    assert figures["acceptance_by_position_conditional"] == pytest.approx([2 / 3, 1 / 2, 0])


def test_a_tree_counts_its_nodes_as_drafted_and_its_path_as_accepted() -> None:
    tree = Forest.of((-1, 0, 0, 1, 1), 1)  # two children of the root, two below the first
    counts = Counts.of([StepRecord(tree, (4,), (3,), 2, 0.0, SECONDS)])
    assert (counts.drafted, counts.accepted, counts.generated) == (4, 2, 3)
    assert StepCost.of(StepRecord(tree, (4,), (3,), 2, 0.0, SECONDS)) == StepCost(1, 5, 2, (1, 2))


def test_acceptance_by_rank_counts_the_nodes_that_were_reached() -> None:
    tree = Forest.of((-1, 0, 0, 1, 1), 1)
    steps = [StepRecord(tree, (leaf,), (tree.depths[leaf] + 1,), 2, 0.0, SECONDS) for leaf in (0, 2, 4)]
    # reached: the root three times, node 1 once; the first candidate was kept once, the second twice
    assert Counts.of(steps).rank_rates() == [1 / 4, 2 / 4]


def test_a_text_that_ends_inside_the_draft_counts_the_draft_tokens_that_became_text() -> None:
    counts = Counts.of([record((5,), (5,), (2,))])
    assert (counts.accepted, counts.generated) == (2, 2)


def test_rows_of_a_batch_are_counted_apart() -> None:
    counts = Counts.of([record((2, 0), (3, 1), (3, 1))])  # nodes: root, root, two below the first
    assert (counts.steps, counts.row_steps, counts.draft_row_steps) == (1, 2, 1)
    assert counts.mean_acceptance_length == 2.0


def test_rows_that_only_read_their_prompt_are_not_counted() -> None:
    counts = Counts.of([record((2, 0), (3, 1), (3, 0))])
    assert (counts.steps, counts.row_steps, counts.mean_acceptance_length) == (1, 1, 3.0)


def test_seconds_are_split_into_forwards_warping_and_overhead() -> None:
    figures = Counts.of([record((1,), (0,), (1,), forwards=1)] * 2).figures()
    split = {"draft": 6, "target": 20, "warping": 1, "overhead": 13}
    assert figures["milliseconds_per_step"] == pytest.approx(split)
    assert figures["drafter_milliseconds_per_step"] == pytest.approx(10 + 4 - 6)  # to propose and to observe


def test_the_time_of_a_step_is_that_of_steps_that_read_no_prompt() -> None:
    reading = StepRecord(Forest.chain((1,)), (0,), (1,), 1, 0.0, {})
    figures = Counts.of([reading, record((1,), (0,), (1,), forwards=1)]).figures()
    assert figures["milliseconds_per_step"]["target"] == pytest.approx(20)
    assert figures["drafter_milliseconds_per_step"] == pytest.approx(8)


def test_what_no_lap_was_booked_for_is_overhead_too() -> None:
    counts = Counts.of([record((1,), (0,), (1,), forwards=1)]).within(0.1)
    assert counts.seconds["overhead"] == pytest.approx(0.1 - 0.006 - 0.020 - 0.001)


def test_counts_add_up() -> None:
    records = [record((3,), (2,), (3,), 3), record((2,), (0,), (1,), 2), record((0,), (0,), (1,))]
    whole, parts = Counts.of(records), Counts.of(records[:1]) + Counts.of(records[1:])
    for each in fields(Counts):
        if each.name not in ("seconds", "drafter_seconds"):
            assert getattr(whole, each.name) == getattr(parts, each.name), each.name
    assert whole.seconds == pytest.approx(parts.seconds)
    assert whole.drafter_seconds == pytest.approx(parts.drafter_seconds)


def test_repetition_counts_repeated_four_grams() -> None:
    assert repetition([1, 2, 3]) == 0.0
    assert repetition(list(range(20))) == 0.0
    assert repetition([7] * 8) == pytest.approx(4 / 5)  # five 4-grams, all the same
    assert repetition([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)


def test_the_first_difference_is_a_position() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 9, 3], [1, 2, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_drafts_beside_the_target_cost_the_wait_for_them_alone() -> None:
    forest = Forest.chain((2,))
    in_turn = StepRecord(forest, (2,), (3,), 2, 0.5, {"draft": 0.6, "score": 1.0})
    beside = replace(in_turn, draft_seconds=0.1, seconds={"draft": 0.1, "score": 1.0}, beside=True)
    assert StepCost.of(in_turn).forwards == 2 and StepCost.of(in_turn).levels == (1, 1)
    assert StepCost.of(beside).forwards == 0 and StepCost.of(beside).levels == ()
    counts = Counts.of([beside])
    assert counts.seconds["draft"] == 0.1 and counts.forwards == 2
