"""A field that is added to the records of a step reaches the drafters of some rows, or is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from outpace.core.claim import Drawn, DrawnBeside
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Scores, Step, Verdict
from outpace.core.noise import KeyedNoise
from outpace.core.row_error import TextTooLong
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.compose.rows import (
    context_of_rows,
    joined_drafts,
    joined_rows,
    plan_of_rows,
    step_of_rows,
)
from outpace.drafters.compose.union import merged_trees
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.sampling.warp import warp

# fields that the functions of drafters.compose.rows (and union, for trees) leave out -> why
LEFT_OUT = {
    Draft: {"carry": "work of one model on the whole batch"},
    Scores: {"computed": "tokens of the whole forward"},
    TokenTree: {"_listed": "its tokens once more"},
}
REBUILT = {
    Draft: {"tree", "forwards", "seconds"},
    TokenTree: {"tokens", "forest", "confidence", "claim"},
    Drawn: {"q", "row", "replace", "ids", "draws"},
    DrawnBeside: {"q", "row", "replace", "ids", "draws", "after", "logits"},
    Scores: {"first", "logits", "hidden", "attention"},
    Step: {"ctx", "draft", "scores", "verdict", "kept", "generated", "seconds", "finished"},
    Verdict: {"leaf", "bonus"},
}


def context(rows: int = 3) -> Context:
    """A context whose fields of rows all have another value in each row."""
    return Context(
        tokens=tuple(torch.arange(row + 2) for row in range(rows)),
        committed=tuple(range(2, rows + 2)),
        max_draft_depth=tuple(range(10, rows + 10)),
        slots=tuple(range(20, rows + 20)),
        cache=cast(Any, "the batch's"),
        sampling=tuple(SamplingParams(seed=row) for row in range(rows)),
        noise=KeyedNoise(list(range(rows)), [0] * rows, [1] * rows),
        prompt_lengths=tuple(range(30, rows + 30)),
        unread=tuple(torch.tensor([row]) for row in range(rows)),
        certain=tuple(range(1, rows + 1)),
    )


def test_the_context_of_some_rows_has_every_field_of_them() -> None:
    whole, rows = context(), [2, 0]
    found = context_of_rows(whole, rows)
    for each in fields(Context):
        value, own = getattr(whole, each.name), getattr(found, each.name)
        if each.name in ("cache", "noise"):
            continue
        assert isinstance(value, tuple) and len(value) == 3, f"say in context() what {each.name} is of a row"
        assert [str(item) for item in own] == [str(value[row]) for row in rows]
    assert found.cache == whole.cache
    bare = context_of_rows(Context(**{**_values(whole), "prompt_lengths": (), "unread": None}), rows)
    assert bare.prompt_lengths == () and bare.unread is None


def _values(ctx: Context) -> dict[str, Any]:
    return {each.name: getattr(ctx, each.name) for each in fields(Context)}


def test_the_plan_of_some_rows_has_their_part_of_the_stem() -> None:
    stem = TokenTree(torch.tensor([5, 6, 7, 8, 9]), Forest.of([-1, -1, 0, 1, 3], 2))
    found = plan_of_rows(Plan((3, 2), stem=stem), [1])
    assert found.depth == (2,) and found.stem is not None
    assert found.stem.token_list() == [6, 8, 9] and found.stem.forest.parents == (-1, 0, 1)


@pytest.mark.parametrize("record", REBUILT, ids=lambda record: record.__name__)
def test_a_new_field_is_rebuilt_or_left_out_on_purpose(record: Any) -> None:
    known = REBUILT[record] | set(LEFT_OUT.get(record, {}))
    assert {each.name for each in fields(record)} == known, (
        "rebuild the new field in drafters/compose/rows.py and union.py, then add it here"
    )


def test_what_is_rebuilt_is_that_of_the_rows() -> None:
    tree = TokenTree(torch.tensor([5, 6, 7, 8]), Forest.of([-1, -1, 0, 1], 2), torch.tensor([0.0, 0, -1, -2]))
    other = TokenTree(torch.tensor([9, 1]), Forest.of([-1, 0], 1), torch.tensor([0.0, -3]))
    joined = joined_drafts([Draft(tree, 2, 0.5), Draft(other, 1, 0.25)], [[0, 2], [1]])
    assert joined.forwards == 3 and joined.seconds == 0.75
    assert joined.tree.tokens.tolist() == [5, 9, 6, 7, 8, 1] and joined.tree.confidence is not None
    scores = Scores(0, torch.arange(12.0).view(6, 2), {-1: torch.arange(6.0)[:, None]}, {0: list(range(6))})
    step = Step(
        context(),
        joined,
        scores,
        Verdict([3, 5, 2], [1, 2, 3]),
        (3, 5, 2),
        ([1], [2], [3]),
        {"draft": 1.0},
        (2,),
    )
    found = step_of_rows(step, [2, 1])
    assert found.draft.tree.tokens.tolist() == [6, 9, 8, 1] and found.generated == ([3], [2])
    assert found.verdict == Verdict([0, 3], [3, 2]) and found.kept == (0, 3) and found.finished == (0,)
    assert found.scores.logits is not None and found.scores.logits[:, 0].tolist() == [4.0, 2.0, 8.0, 10.0]
    assert found.scores.hidden[-1].flatten().tolist() == [2.0, 1.0, 4.0, 5.0]
    assert found.scores.attention[0] == [2, 1, 4, 5] and found.seconds == {"draft": 1.0}


def beside(rows: Sequence[int], depths: Sequence[int], draft: TableTarget) -> TokenTree:
    """A draft of these rows of `context`, with the distributions after all nodes."""
    drafter, whole = DraftModel(draft, reads_leaves=True), context()
    tokens = tuple(each % draft.vocab for each in whole.tokens)
    cache = draft.open(3, 16)
    whole = replace(whole, tokens=tokens, cache=cache, slots=(0, 1, 2), sampling=SAMPLED, unread=None)
    return drafter.propose(context_of_rows(whole, rows), Plan(tuple(depths))).tree


SAMPLED = (SamplingParams(0.7), SamplingParams(0.0), SamplingParams(1.0, top_k=2))


def expected_beside(row: int, path: Sequence[int], draft: TableTarget) -> tuple[Tensor, Tensor]:
    text = [*(context().tokens[row] % draft.vocab).tolist(), *path]
    logits = draft.logits[draft.state(text)][None]
    return warp(logits, [SAMPLED[row]])[0], logits[0]


@pytest.mark.parametrize("depths", [(2, 2, 2), (2, 3, 0), (0, 0, 0), (0, 2, 1)])
def test_distributions_after_nodes_are_those_of_their_texts_in_joined_and_cut_trees(
    depths: tuple[int, int, int],
) -> None:
    draft = TableTarget(4, seed=3)
    whole = beside([0, 1, 2], depths, draft)
    parts = [beside([2, 0], (depths[2], depths[0]), draft), beside([1], depths[1:2], draft)]
    joined = joined_rows(parts, [[2, 0], [1]])
    cut = whole.within([(0, 1, 2, 3)] * 3)
    swapped = [whole.forest.nodes[1], whole.forest.nodes[0]]
    some = [swapped[0][0], swapped[1][0], *swapped[0][1:], *swapped[1][1:]]
    for tree, rows in (
        (whole, [0, 1, 2]),
        (joined, [0, 1, 2]),
        (cut, [0, 1, 2]),
        (whole.only(some, [1, 0]), [1, 0]),
    ):
        assert isinstance(tree.claim, DrawnBeside) and len(tree.claim.after) == len(tree)
        for node in range(len(tree)):
            path = [tree.token_list()[each] for each in tree.forest.path(node)[1:]]
            after, logits = expected_beside(rows[tree.forest.rows[node]], path, draft)
            assert torch.allclose(tree.claim.after[node], after)
            assert torch.equal(tree.claim.logits[node], logits)
    assert len(cut) == 3 + sum(depth > 0 for depth in depths)


def test_trees_with_distributions_after_nodes_are_not_merged() -> None:
    tree = beside([0], (2,), TableTarget(4, seed=3))
    with pytest.raises(TypeError, match="trees that claim DrawnBeside cannot be merged"):
        merged_trees(tree, tree)


def test_a_text_longer_than_the_draft_model_reads_is_an_error_of_its_row() -> None:
    draft = TableTarget(4, seed=3)
    draft.max_length = 3
    tree = beside([0, 1], (2, 2), draft)
    assert [len(nodes) for nodes in tree.forest.nodes] == [2, 1]  # texts of 2 and 3 tokens
    with pytest.raises(TextTooLong, match="reads texts of up to 3 tokens, .*: lower max_tokens") as error:
        beside([0, 1, 2], (2, 2, 2), draft)
    assert error.value.slot == 2
