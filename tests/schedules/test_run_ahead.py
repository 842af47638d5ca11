"""Drafting while the target works: the distribution is the target's, mistakes are caught, drafts are those of
a drafter with a new cache, and a lost thread loses no request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random
from threading import Event
from typing import Any

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Scores, Verdict
from outpace.core.noise import Key, KeyedNoise
from outpace.core.request_state import RequestState
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.no_draft import NoDraft
from outpace.engine.engine import Engine
from outpace.models.skip_set import SkipSet
from outpace.models.slim.slim_table import SlimTable
from outpace.models.table import TableCache, TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, Leak, enumerate_distributions, largest_error
from outpace.proof.models import tables, transformers_models
from outpace.proof.suite import CAUGHT
from outpace.recipes.overlap.pearl import pearl
from outpace.schedules import draft_thread, run_ahead
from outpace.schedules.pending import left_below
from outpace.schedules.run_ahead import Pending, RunAhead, tokens_to
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import residual
from tests.tiers import slow

CASES = [
    Case((0, 1, 0), SamplingParams(1.0, max_tokens=4)),
    Case((1,), SamplingParams(0.7, max_tokens=3, stop=(1,))),
]
MODELS = tables(2)


def parts(**options: Any) -> Parts:
    return pearl.build(MODELS.target, draft=MODELS.drafts[0], **{"depth": 3, "overlap": False} | options)


def error(depth: int = 3) -> float:
    try:
        found = enumerate_distributions(lambda: parts(depth=depth), CASES)
    except Leak:  # a run ends otherwise alone than in a batch
        return 1.0
    assert found.counts.accepted and found.counts.deepest == depth - 1
    return largest_error(found, MODELS.logits, CASES)


def one_by_one(
    session: Session,
    ctx: Context,
    pending: Pending,
    scores: Scores,
    draft: TokenTree,
    *,
    reused: bool = False,
    from_target: bool = False,
    twice: bool = False,
) -> Verdict:
    """The pending drafts are verified first, then the next token is tested by hand; or with a mistake: with a
    random number of another test (`reused`), with the target's distribution in place of the residual
    (`from_target`), or `twice`."""
    target_probs = session.target_probs(scores, pending.tree, ctx)
    verdict = session.parts.verify(pending.tree, target_probs, scores, ctx.noise)
    session.timer.settle("verify")
    bonus, claim = list(verdict.bonus), draft.claim
    for row, end in enumerate(pending.ends):
        below = draft.forest.children[row]
        if verdict.leaf[row] != end or not below or ctx.sampling[row].greedy:
            continue
        assert isinstance(claim, Drawn)
        p, q = target_probs.probs([end])[0], claim.q[claim.row[below[0]]]
        token = draft.token_list()[below[0]]
        tests = [
            ctx.noise.flip([float(p[token] / q[token])], run_ahead_key(row, 1 if reused else 50 + test))[0]
            for test in range(1 + twice)
        ]
        left = p if from_target else residual(p[None], q[None], p[None])[0]
        bonus[row] = token if all(tests) else int(ctx.noise.choose(left[None], run_ahead_key(row, 60)))
    return Verdict(verdict.leaf, bonus)


def run_ahead_key(row: int, node: int) -> Key:
    return Key([row], [node], [node], "accept")


@pytest.mark.slow
def test_the_distribution_is_the_target_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert error(2) < 1e-12 and error(3) < 1e-12
    monkeypatch.setattr(run_ahead, "tested", one_by_one)
    assert error(2) < 1e-12 and error(3) < 1e-12


@pytest.mark.parametrize("mistake", ["reused", slow("from_target"), slow("twice")])
def test_a_mistake_at_the_first_token_is_caught(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    monkeypatch.setattr(run_ahead, "tested", partial(one_by_one, **{mistake: True}))
    assert error(2) > CAUGHT  # so short that a draft is drafted after a pending one


def test_dropping_a_draft_for_its_own_tokens_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unless_0(*step: Any) -> dict[RequestState, TokenTree]:
        return {of: tree for of, tree in left_below(*step).items() if tree.token_list()[1]}

    monkeypatch.setattr(run_ahead, "left_below", unless_0)
    assert error() > CAUGHT


def test_an_entry_of_a_rejected_token_in_the_target_s_cache_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = TableCache.commit

    def with_the_next(self: TableCache, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        commit(self, tree, leaf, slots)
        for node, slot in zip(leaf, slots, strict=True):
            below = tree.forest.children[node] if node >= 0 else ()
            if below and below[0] < len(self.states):  # its token was rejected: an entry in place of the last
                self._kept[slot][-1] = self.states[below[0]]

    monkeypatch.setattr(TableCache, "commit", with_the_next)
    assert error() > CAUGHT


def test_what_is_left_below_a_node() -> None:
    q = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.3, 0.7]])
    claim = Drawn(q, (-1, -1, 0, 1, 2, 1), (False,) * 3)
    tree = TokenTree(torch.tensor([0, 1, 1, 0, 1, 1]), Forest.of([-1, -1, 0, 2, 3, 2], 2), None, claim)
    left = tree.below([2])
    assert left.token_list() == [1, 0, 1, 1] and left.forest.parents == (-1, 0, 1, 0)
    assert isinstance(left.claim, Drawn) and left.claim.row == (-1, 1, 2, 1)
    both = tree.below([3, 1])
    assert both.token_list() == [0, 1, 1] and both.forest.parents == (-1, -1, 0)


@pytest.mark.parametrize("kind", ["table", slow("transformers")])
def test_drafts_ahead_are_those_of_a_drafter_with_a_new_cache(kind: str) -> None:
    of = MODELS if kind == "table" else transformers_models()
    model, choice, vocab = of.drafts[0], Random(3), of.target.vocab
    kept, cache, taken_back = DraftModel(model), of.target.open(2, 64), 0
    text = [[choice.randrange(vocab) for _ in range(3 + row)] for row in range(2)]
    for turn in range(40):
        ctx = Context(
            tokens=tuple(torch.tensor(row) for row in text),
            committed=tuple(map(len, text)),
            max_draft_depth=(9, 9),
            slots=(0, 1),
            cache=cache,
            sampling=(SamplingParams(1.0, max_tokens=99, seed=3), SamplingParams(max_tokens=99)),
            noise=KeyedNoise([3, 0], [turn, turn], [len(row) for row in text]),
        )
        assumed = [[choice.randrange(vocab) for _ in range(choice.randrange(4))] for _ in text]
        ahead = ctx.assuming(assumed)
        draft, new = (each.propose(ahead, Plan((3, 2))).tree for each in (kept, DraftModel(model)))
        assert draft.token_list() == new.token_list() and draft.forest is new.forest
        for own, other in zip(draft.claim.q, new.claim.q, strict=True):
            assert torch.allclose(own, other, atol=1e-9)
        for row, tokens in enumerate(assumed):
            right = choice.randrange(len(tokens) + 1)
            taken_back += right < len(tokens)
            new_tokens = tokens[:right] + [choice.randrange(vocab)]
            if right == len(tokens) and choice.random() < 0.5:  # the draft is right, too
                new_tokens = tokens + tokens_to(draft, max(draft.forest.nodes[row]))
            text[row] += new_tokens
        if len(text[0]) > 50:
            text = [row[:3] for row in text]
            kept.release([0, 1])
    assert taken_back > 20


def test_texts_do_not_depend_on_the_thread_or_on_other_rows() -> None:
    prompts = [[0, 1, 1, 0, 1], [1], [1, 1]]
    sampling = [SamplingParams(t, max_tokens=30, seed=s) for s, t in enumerate((1.0, 0.0, 0.7))]
    found = [texts(parts(overlap=overlap), prompts, sampling) for overlap in (True, False)]
    assert found[0] == found[1]
    for own, prompt, params in zip(found[0], prompts, sampling, strict=True):
        assert texts(parts(), [prompt], [params]) == [own]
    assert found[0][1] == texts(pearl.build(MODELS.target, draft=MODELS.target), [[1]], sampling[1:2])[0]


class Lost(DraftModel):
    """Ends its thread, or hangs, when it is asked for the third draft."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__(MODELS.drafts[0])
        self.asked, self._hangs, self.go_on = 0, hangs, Event()

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self.asked += 1
        if self.asked == 3:
            if not self._hangs:
                raise SystemExit
            self.go_on.wait(20)
        return super().propose(ctx, plan)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_thread_that_is_lost_in_a_request_loses_no_text(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(draft_thread, "PATIENCE", 0.3)
    drafter, prompts = Lost(hangs=hangs), [[0, 1, 0], [1]]
    schedule = RunAhead(drafter)
    lost = Parts(MODELS.target, drafter, Match(), Fixed(3), schedule=schedule)
    sampling = [SamplingParams(t, max_tokens=24, seed=5) for t in (0.0, 1.0)]
    reason = "hang" if hangs else "was ended by SystemExit: drafts are made between the target's forwards"
    with pytest.warns(UserWarning, match="no more drafts are made" if hangs else reason):
        found = texts(lost, prompts, sampling)
    plain = Parts(MODELS.target, DraftModel(MODELS.drafts[0]), Match(), Fixed(3))
    assert found == texts(plain, prompts, sampling)  # with match, any drafts give the same texts
    assert schedule.lost == 1 and (drafter.asked == 3) is hangs
    drafter.go_on.set()
    assert texts(replace(lost, drafter=DraftModel(MODELS.drafts[0])), prompts, sampling) == found


def test_an_error_of_the_drafter_is_the_request_s() -> None:
    class Wrong(DraftModel):
        def propose(self, ctx: Context, plan: Plan) -> Draft:
            raise ValueError("the draft model gave infinite or NaN logits")

    drafter = Wrong(MODELS.drafts[0])
    wrong = Parts(MODELS.target, drafter, Match(), Fixed(3), schedule=RunAhead(drafter))
    with pytest.raises(ValueError, match="infinite or NaN"):
        texts(wrong, [[0]], [SamplingParams(max_tokens=4)])


def test_a_drafter_that_needs_the_target_is_refused() -> None:
    layers = SlimTable(TableTarget(2), SkipSet(frozenset({1}), frozenset({1})))
    for drafter in (NoDraft(), DraftModel(layers)):
        with pytest.raises(ValueError, match="cannot draft ahead of the target"):
            RunAhead(drafter)


def test_requests_that_join_and_leave_while_others_draft_ahead() -> None:
    engine = Engine[str](parts(overlap=True))
    alone = texts(parts(), [[1, 0]], [SamplingParams(1.0, max_tokens=20, seed=9)])[0]
    first = engine.add("first", torch.tensor([0, 1, 1]), SamplingParams(1.0, max_tokens=40, seed=1))
    for _ in range(3):
        engine.step()
    slot = engine.add("second", torch.tensor([1, 0]), SamplingParams(1.0, max_tokens=20, seed=9))
    for _ in range(2):
        engine.step()
    engine.cancel(first)
    for _ in engine.steps():
        pass
    assert engine.output(slot) == alone


def test_a_request_in_the_slot_of_a_cancelled_one_gets_nothing_of_its_draft() -> None:
    engine = Engine[str](parts())
    slot = engine.add("first", torch.tensor([0, 1, 1]), SamplingParams(1.0, max_tokens=40, seed=1))
    for _ in range(3):
        engine.step()
    engine.cancel(slot)
    sampling = SamplingParams(1.0, max_tokens=20, seed=9)
    assert engine.add("second", torch.tensor([1]), sampling) == slot
    for _ in engine.steps():
        pass
    assert engine.output(slot) == texts(parts(), [[1]], [sampling])[0]
