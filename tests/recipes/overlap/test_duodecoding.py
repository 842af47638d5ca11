"""DuoDecoding: the number of sequences and the length of drafts follow the paper's rules, several sequences
are worth more where the draft model is unsure, and tokens that were chosen are not tested as if drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Step
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import Read
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, Leak, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables
from outpace.proof.per_row_controller import controllers_by_row
from outpace.proof.suite import CAUGHT
from outpace.recipes import get
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.overlap.duodecoding.recipe import duodecoding
from outpace.recipes.overlap.duodecoding.sequences import num_sequences, sequences
from outpace.recipes.overlap.duodecoding.speed_ratio import SIZES, UNMEASURED, SpeedRatio
from outpace.schedules.run_ahead import RunAhead
from outpace.verifiers.rejection import Rejection

CASES = [
    Case((0, 1, 0), SamplingParams(1.0, max_tokens=4)),
    Case((1,), SamplingParams(0.7, max_tokens=3, stop=(1,))),
]
MODELS = tables()


def parts(models: Models = MODELS, **options: Any) -> Parts:
    return duodecoding.build(
        models.target, draft=models.drafts[0], **{"depth": 4, "overlap": False} | options
    )


def steps_of(made: Parts, params: SamplingParams, prompt: Sequence[int] = (0, 1, 2)) -> list[Step]:
    steps = list[Step]()
    texts(made, [prompt], [params], observe=steps.append)
    return steps


@pytest.mark.parametrize(
    ("first", "both", "budget", "count"),
    [
        ((0.9, 0.05, 0.03), 0.9 * 0.8, 12, 1),
        ((0.4, 0.3, 0.2), 0.4 * 0.9, 12, 1),
        ((0.4, 0.3, 0.2), 0.4 * 0.6, 12, 2),
        ((0.4, 0.3, 0.2), 0.4 * 0.3, 12, 3),
        ((0.3, 0.2, 0.15, 0.12, 0.1, 0.05), 0.3 * 0.3, 12, 4),  # 5 does not divide 12
        ((0.3, 0.2, 0.15, 0.12, 0.1, 0.05), 0.3 * 0.3, 10, 5),
        ((0.3, 0.2, 0.15, 0.12), 0.01, 7, 1),
        ((0.3, 0.3), 0.01, 1, 1),
    ],
)
def test_the_number_of_sequences_follows_the_papers_rule(
    first: tuple[float, ...], both: float, budget: int, count: int
) -> None:
    assert num_sequences(first, both, budget) == count


def drafted(most: int, depths: Sequence[int], *, stop: tuple[int, ...] = ()) -> tuple[TokenTree, list[int]]:
    """A draft of rows with the texts (0, 1), (1, 2), ...; and the number of nodes that each forward read."""
    rows, read = len(depths), list[int]()
    models, cache = tables(), MODELS.target.open(rows, 16)
    score = models.drafts[0].score

    def noted(tree: Any, slots: Any, own: Any, *rest: Any, **more: Any) -> Any:
        read.append(len(tree) - sum(read))
        return score(tree, slots, own, *rest, **more)

    models.drafts[0].score = noted
    ctx = Context(
        tokens=tuple(torch.tensor([row % 3, (row + 1) % 3]) for row in range(rows)),
        committed=(2,) * rows,
        max_draft_depth=tuple(depths),
        slots=tuple(range(rows)),
        cache=cache,
        sampling=(SamplingParams(stop=stop, max_tokens=20),) * rows,
        noise=KeyedNoise([0] * rows, [0] * rows, [2] * rows),
    )
    drafter = DraftModel(models.drafts[0], sampled=False, growth=partial(sequences, most=most))
    return drafter.propose(ctx, Plan(tuple(depths))).tree, read


def by_hand(text: list[int], most: int, budget: int) -> set[tuple[int, ...]]:
    """The sequences of one row, computed from the draft model's table."""

    def after(tokens: list[int]) -> Any:
        model = MODELS.drafts[0]
        return model.logits[model.state([*text, *tokens])].softmax(-1)

    first = after([])
    best = [int(first.argmax())]
    both = float(first.max()) * (float(after(best).max()) if budget > 1 else 1)
    ranked = first.sort(descending=True)
    count = num_sequences(ranked.values[:most].tolist(), both, budget)
    found = set[tuple[int, ...]]()
    for token in ranked.indices[:count].tolist():
        chain = [token]
        while len(chain) < budget // count:
            chain.append(int(after(chain).argmax()))
        found.add(tuple(chain))
    return found


@pytest.mark.parametrize("most", [1, 2, 8])
def test_rows_have_sequences_of_equal_length_from_the_best_first_tokens(most: int) -> None:
    depths = (6, 4, 1, 0, 2, 12)
    tree, read = drafted(most, depths)
    tokens, forest = tree.token_list(), tree.forest
    numbers = set[int]()
    for row, depth in enumerate(depths):
        leaves = [node for node in forest.nodes[row] if not forest.children[node]]
        chains = {tuple(tokens[node] for node in forest.path(leaf)[1:]) for leaf in leaves}
        text = [row % 3, (row + 1) % 3]
        assert chains == (by_hand(text, most, depth) if depth else {()})
        numbers.add(len(chains))
    assert tree.claim is None and (len(numbers) > 1) == (most > 1)
    assert len(read) <= 12 + (most > 1)


def test_a_sequence_ends_with_a_stop_token() -> None:
    tree, _ = drafted(8, (6, 6, 6), stop=(1,))
    ends = [node for node, token in enumerate(tree.token_list()) if node > 2 and token == 1]
    assert ends and not any(tree.forest.children[node] for node in ends)


def error(made: Any) -> float:
    try:
        found = enumerate_distributions(made, CASES)
    except Leak:  # a run ends otherwise alone than in a batch
        return 1.0
    assert found.counts.accepted
    return largest_error(found, MODELS.logits, CASES)


def test_the_distribution_is_the_target_s_with_any_number_of_sequences_and_measured_depths() -> None:
    for options in ({"most": 1}, {"depth": 6}, {"depth": None}):
        assert error(controllers_by_row(partial(parts, **options))) < 1e-12


def claimed(ctx: Context, plan: Plan, read: Read) -> TokenTree:
    """Sequences whose tokens are claimed to be drawn, from the distributions by which they were chosen."""
    tree = sequences(ctx, plan, read, most=8)
    forest, tokens, model = tree.forest, tree.token_list(), MODELS.drafts[0]
    q = [
        model.logits[
            model.state([*ctx.tokens[row].tolist(), *(tokens[each] for each in forest.path(node)[1:])])
        ]
        for node, row in enumerate(forest.rows)
    ]
    claim = Drawn(torch.stack(q).softmax(-1), forest.parents, (True,) * len(q))
    return replace(tree, claim=claim)


def test_testing_chosen_tokens_as_if_they_were_drawn_is_caught() -> None:
    def wrong() -> Parts:
        drafter = DraftModel(MODELS.drafts[0], growth=claimed)
        return Parts(MODELS.target, drafter, Rejection(), Fixed(2), schedule=RunAhead(drafter, overlap=False))

    assert error(wrong) > CAUGHT


def test_several_sequences_are_worth_more_where_the_draft_model_is_unsure() -> None:
    params = SamplingParams(1.0, max_tokens=300, seed=4)
    generated: dict[tuple[float, int], list[Any]] = {}
    for spread in (0.6, 30.0):  # of the logits: flat and peaked distributions, which the draft model knows
        model = TableTarget(6, order=1, spread=spread)
        for most in (1, 8):
            made = duodecoding.build(model, draft=model, depth=24, most=most, overlap=False)
            generated[spread, most] = [step.generated for step in steps_of(made, params)]
    assert len(generated[0.6, 8]) < 0.95 * len(generated[0.6, 1])
    assert generated[30.0, 8] == generated[30.0, 1] and len(generated[30.0, 1]) < 50


def test_texts_are_those_of_plain_decoding_with_and_without_a_thread_and_for_targets_that_read_chains() -> (
    None
):
    prompts = [[0, 1, 1, 0, 1], [1], [2, 1]]
    sampling = [
        SamplingParams(t, max_tokens=40, seed=s, stop=(2,) * (s > 1)) for s, t in enumerate((1.0, 0.0, 0.7))
    ]
    plain = texts(autoregressive.build(MODELS.target), prompts, sampling)
    chains = tables()
    chains.target.chains_only = True
    for made in (parts(), parts(overlap=True), parts(depth=None), parts(chains)):
        steps = list[Step]()
        assert texts(made, prompts, sampling, observe=steps.append) == plain
        assert max(len(new) for step in steps for new in step.generated) > 2


def test_the_first_draft_of_a_request_has_one_token() -> None:
    for options in ({"depth": 12}, {"depth": None}):
        steps = steps_of(parts(**options), SamplingParams(max_tokens=20))
        assert steps[0].draft.forwards == 1 < steps[1].draft.forwards


def measured(target: float, draft: float, *, forwards: int = 4) -> SpeedRatio:
    controller = SpeedRatio(None)
    [step, *_] = steps_of(parts(), SamplingParams(max_tokens=2))
    for _ in range(5):
        assert controller.size in (UNMEASURED, *SIZES)
        timed = Draft(step.draft.tree, forwards, draft * forwards)
        controller.observe(replace(step, draft=timed, seconds={"score": target}))
    return controller


def test_the_length_follows_measured_times() -> None:
    assert SpeedRatio(None).size == UNMEASURED and SpeedRatio(5).size == 5
    assert [measured(ratio, 1.0).size for ratio in (0.3, 1.0, 3.5, 11.0, 17.0, 90.0)] == [1, 1, 4, 12, 16, 24]
    assert SpeedRatio(None).plans_across_rows and not SpeedRatio(5).plans_across_rows


def test_options_that_cannot_work_are_refused() -> None:
    chains = TableTarget(3)
    chains.chains_only = True
    for options, message in (
        ({"depth": 0}, "depth is 0: give 1 or more, or none"),
        ({"most": 0}, "most is 0: a draft has 1 sequence or more"),
        ({"draft": chains}, "this draft model reads chains only: give most=1"),
    ):
        with pytest.raises(ValueError, match=message):
            get("duodecoding").build(MODELS.target, **{"draft": MODELS.drafts[0]} | options)
    get("duodecoding").build(MODELS.target, draft=chains, most=1)
