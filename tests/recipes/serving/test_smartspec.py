"""SmartSpec: depths follow acceptance and load, and requests without drafts cost the draft model nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from outpace.controllers.adaptive_depth import FIRST_DEPTHS, AdaptiveDepth
from outpace.controllers.step_cost import StepCost
from outpace.core.claim import Drawn
from outpace.core.contracts import (
    NOTHING,
    Cache,
    Carry,
    Context,
    Draft,
    Frontier,
    Parts,
    Plan,
    Scores,
    Step,
    TokenTree,
    Want,
)
from outpace.core.sampling_params import SamplingParams
from outpace.cost.linear_cost import Numbers
from outpace.decode import Session
from outpace.drafters.compose.planned_rows import PlannedRows
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.joint import Group, enumerate_joint, largest_joint_error
from outpace.proof.mutants.drafters import picked
from outpace.proof.per_row_controller import controllers_by_row
from outpace.proof.reference import table_logits
from outpace.recipes.serving.smartspec import smartspec
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rejection import Rejection
from tests.tiers import slow

TARGET, UNLIKE = TableTarget(6, seed=1), TableTarget(6, seed=2, order=2)
PROMPTS = [torch.tensor([1, 2, 3]), torch.tensor([4, 0]), torch.tensor([5, 5, 1, 0])]


def session(parts: Parts, temperature: float = 0.0) -> Session:
    sampling = [SamplingParams(temperature, max_tokens=60, seed=seed) for seed in range(len(PROMPTS))]
    return Session(parts, PROMPTS, sampling, LazyTargetProbs)


def plain(prompt: torch.Tensor) -> list[int]:
    text = prompt.tolist()
    for _ in range(60):
        text.append(int(TARGET.logits[TARGET.state(text)].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("draft", [TARGET, UNLIKE, None])
def test_greedy_texts_are_those_of_plain_decoding(draft: TableTarget | None) -> None:
    decoded = session(smartspec.build(TARGET, draft=draft))
    drafted = sum(len(step.draft.tree) - len(step.ctx.slots) for step in decoded.steps())
    assert [decoded.request(slot).output() for slot in range(len(PROMPTS))] == [*map(plain, PROMPTS)]
    assert drafted > 0


def test_the_first_token_does_not_wait_for_a_draft() -> None:
    first = next(session(smartspec.build(TARGET, draft=TARGET)).steps())
    assert first.draft.forwards == 0 and all(len(generated) == 1 for generated in first.generated)


def test_the_first_steps_after_the_prompts_try_several_depths() -> None:
    steps = session(smartspec.build(TARGET, draft=TARGET, depth=8)).steps()
    next(steps)
    drafted = [
        len(step.draft.tree) - len(step.ctx.slots) for step, _ in zip(steps, FIRST_DEPTHS, strict=False)
    ]
    assert drafted == [24, 12, 6, 24]


class FirstRowPlain(AdaptiveDepth):
    """Plans drafts in every row but the first, and in all rows from the sixth step on."""

    num_steps = 0

    def plan(self, ctx: Context) -> Plan:
        self.num_steps += 1
        return Plan(tuple(0 if slot == 0 and self.num_steps < 6 else 3 for slot in ctx.slots))


class CountingTarget(TableTarget):
    """A table model that records the slots of each of its forwards."""

    def __init__(self) -> None:
        super().__init__(6, seed=1)
        self.slots: list[tuple[int, ...]] = []

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[torch.Tensor] | None = None,
        carry: Carry | None = None,
    ) -> Scores:
        self.slots.append(tuple(slots))
        return super().score(tree, slots, cache, want, gap=gap)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_draft_model_does_not_read_requests_without_drafts(temperature: float) -> None:
    draft = CountingTarget()
    drafter = PlannedRows(DraftModel(draft))
    decoded = session(Parts(TARGET, drafter, Rejection(), FirstRowPlain(3)), temperature)
    for number, step in enumerate(decoded.steps(), 1):
        seen = {slot for slots in draft.slots for slot in slots}
        if number < 6:
            assert seen == {1, 2}
            assert len(step.draft.tree.forest.nodes[0]) == 1 < len(step.draft.tree.forest.nodes[1])
        elif number == 6:
            assert seen == {0, 1, 2}  # it has read the first request's text by now
    if temperature == 0:
        assert [decoded.request(slot).output() for slot in range(len(PROMPTS))] == [*map(plain, PROMPTS)]


class Clock(StepCost):
    """Times that are known exactly: a second per forward of the target, more per draft token and forward."""

    per_token, per_forward = 0.1, 0.05

    def knows(self, rows: int) -> bool:
        return True

    def record(self, step: Step, drafted: int) -> None:
        """Does nothing: nothing is left to measure."""

    def record_drafting(self, step: Step, read: int) -> None:
        """Does nothing, as `record`."""

    def seconds(self, rows: int, context: int, unread: int, forwards: Numbers, drafted: Numbers) -> Numbers:
        return 1 + self.per_token * drafted + self.per_forward * forwards


class Experienced(AdaptiveDepth):
    """A controller after many steps in which improbable draft tokens were rejected; it records how many paths
    it ended and how many it continued."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__(depth, width=width, trims=True)
        self._cost, self._num_plans = Clock(), len(FIRST_DEPTHS)
        self._tokens._tested[:] = 100.0
        self._tokens._accepted[:, 6:] = 90.0
        self.ended: list[bool] = []

    def _ends(self, frontier: Frontier) -> list[bool]:
        ends = super()._ends(frontier)
        self.ended += ends
        return ends


def trimmed(width: int, sampled: bool, found: list[Experienced], drafter: type[DraftModel]) -> Parts:
    controller = Experienced(3, width)
    found.append(controller)
    return Parts(SMALL, PlannedRows(drafter(OTHER, sampled=sampled)), Rejection(), controller)


class DropsAfterLooking(DraftModel):
    """Wrong: also drops the last token of a path if its own draft probability ends that path."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = super().propose(ctx, plan)
        tree, claim = draft.tree, draft.tree.claim
        if not isinstance(claim, Drawn) or tree.confidence is None:
            return draft
        forest, probs = tree.forest, tree.confidence.exp().tolist()
        kept = list(range(forest.num_rows))
        for node in range(forest.num_rows, len(forest)):
            if forest.children[node] or probs[node] >= 0.6:
                kept.append(node)
        return replace(draft, tree=picked(tree, claim, kept))


SMALL, OTHER = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)
LOGITS = table_logits(SMALL.logits, SMALL.state)
CASES = [
    Case((0, 1), SamplingParams(1.0, max_tokens=4)),
    Case((2,), SamplingParams(0.7, max_tokens=4)),
    Case((1, 1), SamplingParams(max_tokens=5)),
]


@pytest.mark.parametrize(("width", "sampled"), [slow(1, True), (1, False), slow(2, True), slow(2, False)])
def test_trimmed_drafts_keep_the_distribution(width: int, sampled: bool) -> None:
    found: list[Experienced] = []
    build = controllers_by_row(lambda: trimmed(width, sampled, found, DraftModel))
    enumeration = enumerate_distributions(build, CASES)
    ended = [end for each in found for end in each.ended]
    assert largest_error(enumeration, LOGITS, CASES) < BOUND
    assert 50 < sum(ended) < len(ended) - 50 and enumeration.counts.deepest > 1


@pytest.mark.slow
def test_rows_that_trim_one_another_are_independent() -> None:
    """A path of one row ends because another row's tokens are worth more; both depend on drawn tokens."""
    row = SamplingParams(1.0, max_tokens=4, logit_bias=((2, float("-inf")),))
    groups, found = [Group((1, 1), (row, row))], list[Experienced]()
    enumeration = enumerate_joint(lambda: trimmed(1, True, found, DraftModel), groups)
    ended = [end for each in found for end in each.ended]
    assert largest_joint_error(enumeration, LOGITS, groups) < BOUND
    assert 50 < sum(ended) < len(ended) - 50 and enumeration.counts.deepest > 1


@pytest.mark.slow
def test_tokens_that_are_dropped_for_their_own_draft_probability_are_caught() -> None:
    found: list[Experienced] = []
    build = controllers_by_row(lambda: trimmed(1, True, found, DropsAfterLooking))
    assert largest_error(enumerate_distributions(build, CASES, replays=0), LOGITS, CASES) > 1e-3


@pytest.mark.parametrize("per_token", [0.01, 0.1, 0.25, 0.6])
def test_paths_go_on_while_they_are_worth_their_time(per_token: float) -> None:
    """Against all choices of depths, by the sum that the controller is to maximise."""
    controller = Experienced(3, 1)
    controller._cost.per_token = per_token
    decoded = session(Parts(TARGET, DraftModel(UNLIKE), Rejection(), controller), 1.0)
    steps = decoded.steps()
    next(steps)
    controller.plan(decoded.context())
    controller._planned, controller._drafted = {0: 3, 1: 3, 2: 2}, 3
    speed = controller._speed
    assert speed is not None
    paths, rates = [[0.9], [0.5], [0.1]], [controller._rates.rate(slot) for slot in range(3)]
    reach = [
        controller._tokens.path(path, rate, greedy=False) for path, rate in zip(paths, rates, strict=True)
    ]

    def gain(depths: tuple[int, ...]) -> float:
        tokens = sum(
            first * sum(rate**level for level in range(1, depth + 1))
            for first, rate, depth in zip(reach, rates, depths, strict=True)
        )
        return tokens - speed * (per_token * sum(depths) + controller._cost.per_forward * max(depths))

    best = max(product(range(3), range(3), range(2)), key=gain)
    assert controller._ends(Frontier([0, 1, 2], paths)) == [depth == 0 for depth in best]


def test_a_tree_has_chains_below_its_root_and_is_refused_where_it_cannot_be_read() -> None:
    steps = session(smartspec.build(TARGET, draft=UNLIKE, depth=4, width=3), 1.0).steps()
    next(steps)
    forest = next(steps).draft.tree.forest
    assert [len(forest.children[root]) for root in range(3)] == [3, 3, 3]
    assert max(len(forest.children[node]) for node in range(3, len(forest))) == 1 and max(forest.depths) == 4
    chains = TableTarget(6, seed=1)
    chains.chains_only = True
    with pytest.raises(ValueError, match="give width=1"):
        smartspec.build(chains, draft=UNLIKE, width=2)
    with pytest.raises(ValueError, match="width is 0"):
        smartspec.build(TARGET, draft=UNLIKE, width=0)


@pytest.mark.parametrize(
    "options", [{"trim": True}, {"width": 2}, {"width": 2, "trim": True, "sampled": False}]
)
def test_texts_of_trees_and_trimmed_drafts_are_those_of_plain_decoding(options: dict[str, Any]) -> None:
    decoded = session(smartspec.build(TARGET, draft=UNLIKE, **options))
    drafted = sum(len(step.draft.tree) - len(step.ctx.slots) for step in decoded.steps())
    assert [decoded.request(slot).output() for slot in range(len(PROMPTS))] == [*map(plain, PROMPTS)]
    assert drafted > 0
