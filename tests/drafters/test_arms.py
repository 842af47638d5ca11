"""Several methods for one request: who drafts, who observes, and what is claimed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Step, Want
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, Shape, TokenTree
from outpace.decode import Session, speculative_steps
from outpace.drafters.compose.arms import ArmsDrafter
from outpace.drafters.compose.rows import joined_rows
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.lookup.token_recycling import TokenRecycling
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.training_free.lookahead import Lookahead
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection
from tests.recipes.counting_model import counting

VOCAB = 40


class Turns:
    """Implementation of core.contracts.Controller in which the arms take turns, each row one step ahead of
    the row before it."""

    want = Want()
    plans_across_rows = False

    def __init__(self, num_arms: int) -> None:
        self._num_arms, self.turn = num_arms, 0

    def plan(self, ctx: Context) -> Plan:
        self.turn += 1
        drafter = tuple((self.turn + slot) % self._num_arms for slot in ctx.slots)
        return Plan(ctx.max_draft_depth, drafter=drafter)

    def observe(self, step: Step) -> None:
        pass

    def release(self, slots: Sequence[int]) -> None:
        pass


class Watched(Fixed):
    """Counts the rows that it planned, and keeps those that it observed with the parts that were timed."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.planned: list[tuple[int, ...]] = []
        self.observed: list[tuple[tuple[int, ...], bool]] = []

    def plan(self, ctx: Context) -> Plan:
        self.planned.append(ctx.slots)
        return super().plan(ctx)

    def observe(self, step: Step) -> None:
        self.observed.append((step.ctx.slots, bool(step.seconds)))


class Listening(NGram):
    """Keeps which rows it observed."""

    def __init__(self) -> None:
        super().__init__()
        self.observed: list[tuple[int, ...]] = []

    def observe(self, step: Step) -> None:
        self.observed.append(step.ctx.slots)


def decode(
    parts: Parts, prompts: Sequence[Sequence[int]], temperature: float = 0.0, tokens: int = 40
) -> Session:
    sampling = [SamplingParams(temperature, max_tokens=tokens, seed=row) for row in range(len(prompts))]
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs)
    for _ in session.steps():
        pass
    return session


def test_drafters_observe_every_step_and_controllers_those_rows_they_planned() -> None:
    target = counting(VOCAB)
    drafters, controllers = [Listening(), Listening()], [Watched(3), Watched(2)]
    arms = [
        Parts(target, each, Match(), watched) for each, watched in zip(drafters, controllers, strict=True)
    ]
    decode(Parts(target, ArmsDrafter(arms), Match(), Turns(2)), [[1], [2]], tokens=12)
    assert drafters[0].observed == drafters[1].observed and (0, 1) in drafters[0].observed
    for watched in controllers:
        assert watched.planned == [slots for slots, _ in watched.observed] and watched.planned
        assert all(len(slots) == 1 and not timed for slots, timed in watched.observed)
    alone = [Watched(3), Watched(2)]
    arms = [Parts(target, NGram(), Match(), watched) for watched in alone]
    decode(Parts(target, ArmsDrafter(arms), Match(), Turns(2)), [[1]], tokens=12)
    assert all(timed for watched in alone for _, timed in watched.observed)


def test_an_attempt_that_failed_is_forgotten() -> None:
    """As in a server, where the rows go on without the one at which the attempt failed."""
    target, controllers = counting(VOCAB), [Watched(2), Watched(2)]
    arms = ArmsDrafter([Parts(target, NGram(), Match(), each) for each in controllers])

    def loop(session: Session) -> Iterator[Step]:
        yield from islice(speculative_steps(session), 1)  # reads the prompts
        arms.propose(session.context(), Plan((2, 2), drafter=(1, 1)))
        for each in controllers:
            each.observed.clear()
        yield from islice(speculative_steps(session), 1)

    class First(Turns):
        def plan(self, ctx: Context) -> Plan:
            return Plan((2, 0), drafter=(0, 1))

    session = Session(
        Parts(target, arms, Match(), First(2)),
        [torch.tensor([each]) for each in (1, 2)],
        [SamplingParams(max_tokens=20)] * 2,
        LazyTargetProbs,
    )
    assert len(list(session.steps(loop))) == 2
    assert [each.observed for each in controllers] == [[((0,), False)], []]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_arm_that_pauses_catches_up(temperature: float) -> None:
    """A perfect draft model that drafts every third step of a row: its drafts are still accepted."""
    target = counting(VOCAB)
    arms = [
        Parts(target, DraftModel(counting(VOCAB)), Rejection(), Fixed(4)),
        Parts(target, NGram(), Match(), Fixed(4)),
        Parts(target, TokenRecycling(VOCAB, 2), Match(), Fixed(Shape.branching((2, 1)))),
    ]
    parts = Parts(target, ArmsDrafter(arms), Rejection(), Turns(3))
    sampling = [SamplingParams(temperature, max_tokens=30)] * 3
    prompts = [torch.tensor([first]) for first in (0, 5, 9)]
    session = Session(parts, prompts, sampling, LazyTargetProbs)
    for number, step in enumerate(session.steps(), 1):
        for row, slot in enumerate(step.ctx.slots):
            if (number + slot) % 3 == 0 and step.ctx.max_draft_depth[row] >= 4:
                assert len(step.generated[row]) == 5
    assert [session.request(slot).output() for slot in range(3)] == [
        [(first + count) % VOCAB for count in range(1, 31)] for first in (0, 5, 9)
    ]


def test_lookahead_does_not_learn_from_the_tree_of_another_arm() -> None:
    target, windows = TableTarget(8, seed=1), Lookahead(4, 3, 4)
    arms = [
        Parts(target, windows, Match(), Fixed(windows.depth)),
        Parts(target, DraftModel(TableTarget(8, seed=2), sampled=False), Match(), Fixed(3)),
    ]
    parts, prompts = Parts(target, ArmsDrafter(arms), Match(), Turns(2)), [[1, 2, 3], [4], [5, 1]]
    plain = decode(autoregressive.build(target), prompts)
    together = decode(parts, prompts)
    for slot in range(3):
        assert together.request(slot).output() == plain.request(slot).output()
    learned: list[list[list[int]]] = []
    for rows in (prompts, prompts[:1]):  # the first request's window does not depend on the rows beside it
        parts = replace(parts, controller=Turns(2))
        session = Session(
            parts,
            [torch.tensor(row) for row in rows],
            [SamplingParams(max_tokens=30)] * len(rows),
            LazyTargetProbs,
        )
        seen: list[list[int]] = []
        for _ in session.steps():
            if 0 in windows._texts:
                seen += [row.copy() for row in windows._texts[0].rows]
        learned.append(seen)
    assert learned[0] == learned[1] and len({tuple(row) for row in learned[0]}) > 10


class ChainsOnly(TableTarget):
    chains_only = True


def test_trees_of_one_arm_beside_drawn_chains_of_another_become_chains() -> None:
    target = ChainsOnly(8, seed=1)
    arms = [
        Parts(target, TokenRecycling(8, 2), Match(), Fixed(Shape.branching((2, 2)))),
        Parts(target, DraftModel(TableTarget(8, seed=2)), Rejection(), Fixed(3)),
    ]
    session = decode(Parts(target, ArmsDrafter(arms), Rejection(), Turns(2)), [[1], [2]], temperature=1.0)
    assert [len(session.request(slot).output()) for slot in (0, 1)] == [40, 40]


def drawn(q: list[list[float]], ids: list[list[int]] | None, token: int) -> TokenTree:
    """A root and one child that was drawn from the first row of q."""
    claim = Drawn(torch.tensor(q), (-1, 0), (False,), None if ids is None else torch.tensor(ids))
    return TokenTree(torch.tensor([0, token]), Forest.chain((1,)), claim=claim)


def test_claims_over_listed_tokens_and_over_the_vocabulary_are_joined() -> None:
    whole, few = drawn([[0.1, 0.2, 0.3, 0.4]], None, 3), drawn([[0.75, 0.25]], [[2, 0]], 2)
    claim = joined_rows([whole, few], [[1], [0]]).claim
    assert isinstance(claim, Drawn) and claim.ids is None
    assert torch.allclose(claim.q, torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.25, 0.0, 0.75, 0.0]]))
    fewer = drawn([[1.0]], [[3]], 3)
    claim = joined_rows([few, fewer], [[0], [1]]).claim
    assert isinstance(claim, Drawn) and claim.ids is not None
    assert claim.q.tolist() == [[0.75, 0.25], [1.0, 0.0]] and claim.ids[:, 0].tolist() == [2, 3]


def test_rows_of_depth_0_are_drafted_by_no_arm() -> None:
    target, controllers = counting(VOCAB), [Watched(3), Watched(3)]
    arms = ArmsDrafter([Parts(target, NGram(), Match(), watched) for watched in controllers])
    session = Session(
        Parts(target, arms, Match(), Turns(2)),
        [torch.tensor([1])] * 3,
        [SamplingParams()] * 3,
        LazyTargetProbs,
    )
    ctx = session.context()
    draft = arms.propose(ctx, Plan((0, 2, 0), drafter=(0, 1, 1)))
    assert isinstance(draft, Draft) and draft.tree.forest.num_rows == 3
    assert (controllers[0].planned, controllers[1].planned) == ([], [(1,)])
