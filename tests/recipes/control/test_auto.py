"""Auto: what drafts with a draft model, a head, or neither."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outpace.controllers import source_choice
from outpace.controllers.source_choice import EXPLORING, FIRST_DEPTHS, REST_AFTER, TRY_AFTER, SourceChoice
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.compose.lookup_or_draft import LookupOrDraft
from outpace.indexes import store
from outpace.indexes.automata.static import StaticAutomaton
from outpace.models.heads.dspark.head import untrained_dspark
from outpace.models.heads.dspark.kind import DSparkModel
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle3.kind import Eagle3Model
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.hydra.kind import HydraModel
from outpace.models.heads.medusa.head import untrained_medusa
from outpace.models.heads.medusa.kind import MedusaModel
from outpace.models.heads.mlp_speculator.kind import MlpSpeculatorModel
from outpace.models.heads.p_eagle.head import untrained_p_eagle
from outpace.models.heads.p_eagle.kind import PEagleModel
from outpace.models.heads.position_model import PositionModel
from outpace.models.heads.redrafter.kind import ReDrafterModel
from outpace.models.table import TableTarget
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.option_values import choices
from outpace.proof.per_row_controller import ControllersApart
from outpace.proof.reference import table_logits
from outpace.proof.suite import PLANS, Subject, ragged
from outpace.recipes._option_kinds import kind_of
from outpace.recipes.control.auto import auto
from outpace.sampling.target_probs import LazyTargetProbs
from tests.recipes.counting_model import counting
from tests.tiers import only, slow

HEADS = {
    "eagle3": Eagle3Model,
    "medusa": MedusaModel,
    "hydra": HydraModel,
    "mlp-speculator": MlpSpeculatorModel,
    "redrafter": ReDrafterModel,
    "dspark": DSparkModel,
    "p-eagle": PEagleModel,
}
VOCAB = 60
UNLIKE = TableTarget(VOCAB, seed=5, order=1)


def steps(prompt, tokens: int = 80, target=None, temperature: float = 0.0, **options) -> list:
    parts = auto.build(target or counting(VOCAB), **options)
    timed = ControllersApart(lambda: parts.controller)
    sampling = [SamplingParams(temperature=temperature, max_tokens=tokens, seed=0)]
    session = Session(replace(parts, controller=timed), [torch.tensor(prompt)], sampling, LazyTargetProbs)
    return [step for step in session.steps() if any(step.generated)]


def test_without_a_model_repeated_text_is_looked_up_and_other_text_is_not_drafted() -> None:
    repeats = steps([*range(10), *range(8)])
    assert max(len(step.generated[0]) for step in repeats) > 3
    assert all(not step.draft.forwards for step in repeats)
    random = steps([3], target=TableTarget(VOCAB, seed=1, order=2), tokens=40)
    assert sum(len(step.draft.tree) - 1 for step in random) < 0.5 * len(random)


def test_before_times_are_known_uncertain_text_is_drafted_a_few_tokens_at_a_time() -> None:
    """A match of one token could be followed by a draft of 30, most of which is unlikely to be accepted."""
    first, *_ = steps([3, *range(20, 55), 3], target=TableTarget(VOCAB, seed=1, order=2), tokens=40)
    assert 0 < len(first.draft.tree) - 1 < 10


@pytest.mark.parametrize("drafted", [False, True])
def test_text_that_repeats_a_corpus_is_looked_up_there(drafted: bool, tmp_path: Path) -> None:
    store.save(StaticAutomaton.build([list(range(200))]), tmp_path / "corpus.sam")
    drafts = {"draft": counting(900)} if drafted else {}
    prompt, target = [*range(8)], counting(900)
    steps_with = steps(prompt, 150, target, index=str(tmp_path / "corpus.sam"), **drafts)
    assert max(len(step.generated[0]) for step in steps_with if not step.draft.forwards) == 31
    without = steps(prompt, 150, target, **drafts)
    assert max((len(step.generated[0]) for step in without if not step.draft.forwards), default=1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("drafted", [slow(False), True])
def test_drafts_from_a_corpus_keep_the_distribution(drafted: bool, tmp_path: Path) -> None:
    """No token of the prompt repeats, and two tokens can only be accepted in the first step: these are the
    corpus's, or the draft model's."""
    target = TableTarget(8, seed=2, order=1)
    file = tmp_path / "corpus.sam"
    store.save(StaticAutomaton.build([[0, 1, 2, 3, 4, 5, 6, 7, 3], [6, 7, 3, 1]]), file)
    drafts = {"draft": TableTarget(8, seed=3, order=1)} if drafted else {}
    cases = [Case(tuple(range(7)), SamplingParams(1.0, max_tokens=3))]
    looked_up = list[int]()

    def parts(**options) -> Parts:
        made = auto.build(target, **drafts, **options)
        controller = made.controller
        assert isinstance(controller, SourceChoice)
        controller._num_drafts = len(FIRST_DEPTHS)  # what drafts is chosen from the first step on
        choose = controller._choose

        def watched(limits, look_up):
            sizes = choose(limits, look_up)
            looked_up.extend(size for size, _ in sizes)
            return sizes

        controller._choose = watched
        return replace(made, controller=ControllersApart(lambda: controller, [0] * 1000))

    found = enumerate_distributions(lambda: parts(index=str(file)), cases, batch=1, replays=0)
    assert largest_error(found, table_logits(target.logits, target.state), cases) < 1e-12
    assert max(looked_up) == 2 and found.counts.deepest == 2
    if not drafted:
        assert enumerate_distributions(parts, cases, batch=1, replays=0).counts.deepest < 2


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        slow("draft", "table"),
        slow("draft", "peaked"),
        slow("head", "table"),
        *only(
            [(each, "peaked") for each in ("head", "dspark")],
            [(each, "peaked") for each in ("head", *HEADS)],
        ),
    ],
)
def test_choices_by_measured_times_keep_the_distribution(
    kind: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first nine drafts are longer than the texts of a proof, so none of its choices would be by what was
    measured: here the first draft alone has a length that is given, and everything is tried often."""
    for name, value in {
        "FIRST_DEPTHS": (1,),
        "TRY_AFTER": 2,
        "EXPLORING": 0.5,
        "PROBE_EVERY": 2,
        "REST_AFTER": 2,
    }.items():
        monkeypatch.setattr(source_choice, name, value)
    chosen, choose = Counter[str](), SourceChoice._choose

    def watched(self, limits, look_up):
        first = self._num_drafts < 1
        sizes = choose(self, limits, look_up)
        for (looked_up, drafted), limit in zip(sizes, limits, strict=True):
            if limit and not first:
                chosen["lookup" if looked_up else "model" if drafted else "none"] += 1
        return sizes

    monkeypatch.setattr(SourceChoice, "_choose", watched)
    models = PLANS[kind].models()
    if given in HEADS:
        of_kind = kind_of(HEADS[given])
        assert of_kind is not None
        options = {"head": of_kind.fixture(models)}
    else:
        (options,) = [each for each in choices(auto, models) if each.keys() & {"draft", "head"} == {given}]
    proof = Subject(auto, options, models).prove(ragged, 900)
    assert proof.holds and proof.accepted > 20 and proof.deepest >= 2, proof.verdict
    assert chosen["lookup"] > 10 and chosen["model"] > 100, chosen


def test_the_step_that_reads_the_prompt_drafts() -> None:
    first, *_ = steps([*range(10)], draft=counting(VOCAB), tokens=30)
    assert first.ctx.unread is not None and len(first.generated[0]) == FIRST_DEPTHS[0] + 1


@pytest.mark.parametrize("drafted", [False, True])
def test_text_that_does_not_repeat_is_looked_up_in_some_steps_only(drafted: bool) -> None:
    parts = auto.build(counting(900), draft=counting(900) if drafted else None)
    assert isinstance(parts.drafter, LookupOrDraft)
    lookup, controller = parts.drafter._lookup, parts.controller
    look_up, asked = lookup.look_up, list[int]()

    def watched(ctx, plan):
        asked.append(ctx.committed[0])
        return look_up(ctx, plan)

    lookup.look_up = watched
    sampling = [SamplingParams(max_tokens=600 if drafted else 200)]
    session = Session(parts, [torch.tensor([3])], sampling, LazyTargetProbs)
    steps = [step.ctx.committed[0] for step in session.steps() if any(step.generated)]
    always = REST_AFTER + len(FIRST_DEPTHS) * drafted
    assert len(steps) > 4 * always and asked[:always] == steps[:always]
    assert 0 < len(asked) - always <= 0.3 * (len(steps) - always)
    assert isinstance(controller, SourceChoice)
    controller.release([0])
    assert controller._without == 0


def test_with_a_model_it_drafts_where_nothing_repeats() -> None:
    drafted = steps([3], draft=counting(900), target=counting(900), tokens=100)
    assert sum(map(bool, (step.draft.forwards for step in drafted))) > 10
    assert max(len(step.generated[0]) for step in drafted) == 7


def test_a_useless_model_is_tried_seldom() -> None:
    # sampled, since greedy text would repeat itself
    target = TableTarget(VOCAB, seed=1, order=2)
    drafted = steps([3], target=target, draft=counting(VOCAB), tokens=400, temperature=1.0)
    later = [bool(step.draft.forwards) for step in drafted[100:]]
    assert len(later) > 200 and 0 < sum(later) <= 1 + len(later) / TRY_AFTER


def test_a_model_that_was_slow_at_first_is_used_again() -> None:
    """Its first forwards take a hundred times as long as later ones."""
    target = TableTarget(VOCAB, seed=1, order=2)
    parts = auto.build(target, draft=target)
    controller = parts.controller
    assert isinstance(controller, SourceChoice)
    session = Session(parts, [torch.tensor([3])], [SamplingParams(1.0, max_tokens=900)], LazyTargetProbs)
    observe, used = controller.observe, list[bool]()

    def timed(step) -> None:
        used.append(bool(step.draft.forwards))
        forwards = step.draft.forwards
        slow = 100.0 if len(used) <= 2 * len(FIRST_DEPTHS) // 3 else 1.0
        seconds = {"draft": 0.1 * forwards * slow, "score": 1.0}
        observe(replace(step, draft=replace(step.draft, seconds=seconds["draft"]), seconds=seconds))

    controller.observe = timed
    list(session.steps())
    assert sum(used[-60:]) > 50


@pytest.mark.slow
def test_a_length_that_was_slow_for_a_while_is_used_again() -> None:
    """Forwards of up to six tokens take twice their time in the first steps."""
    target = TableTarget(VOCAB, seed=1, order=2)
    controller = SourceChoice(4, 6, sizes=(1, 6, 11))
    parts = replace(auto.build(target, draft=target), controller=controller)
    session = Session(parts, [torch.tensor([3])], [SamplingParams(1.0, max_tokens=3000)], LazyTargetProbs)
    observe, used = controller.observe, list[int]()

    def timed(step) -> None:
        used.append(len(step.draft.tree) - 1)
        slow = 2.0 if len(used) < 100 else 1.0
        seconds = {"draft": 0.1 * used[-1], "score": slow if used[-1] < 6 else 2.0}
        observe(replace(step, draft=replace(step.draft, seconds=seconds["draft"]), seconds=seconds))

    controller.observe = timed
    list(session.steps())
    assert used[60:100].count(6) > 30 and used[-40:].count(5) > 30


def test_what_trying_costs_is_limited() -> None:
    controller = SourceChoice(4, 3)
    controller._generated = 1000.0
    tried = [controller._tries(0, 2.0) for _ in range(100)]
    assert sum(tried) * 2.0 <= EXPLORING * 1000 and sum(tried) == 10


@pytest.mark.slow
def test_the_first_layers_of_a_target_that_was_trained_for_it_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TableTarget(3, seed=1)
    assert isinstance(auto.build(target).controller, SourceChoice)
    monkeypatch.setattr("outpace.recipes.control.auto.trained_exit", lambda target: target.num_layers - 1)

    def parts() -> Parts:
        made = auto.build(target)
        return replace(made, controller=ControllersApart(lambda: auto.build(target).controller))

    cases = [
        Case((0, 1, 2), SamplingParams(1.0, max_tokens=4)),
        Case((2,), SamplingParams(0.7, max_tokens=4)),
    ]
    found = enumerate_distributions(parts, cases, batch=1, replays=0)
    assert largest_error(found, table_logits(target.logits, target.state), cases) < 1e-12
    assert found.counts.accepted and found.counts.deepest >= 2
    drafted = steps([0, 1], tokens=60, target=target)
    assert sum(bool(step.draft.forwards) for step in drafted) > 5


def test_a_draft_is_not_planned_longer_than_the_head_can_draft() -> None:
    target = TableTarget(VOCAB, seed=1, order=2)
    head = PositionModel(untrained_medusa(target))
    assert head.head.max_depth is not None and head.head.max_depth < 6
    controller = auto.build(target, head=head, depth=6).controller
    assert isinstance(controller, SourceChoice) and controller._depth == head.head.max_depth


@pytest.mark.parametrize("made", [untrained_eagle, untrained_dspark, untrained_p_eagle])
def test_with_depth_0_a_head_drafts_nothing(made: Any) -> None:
    target = TableTarget(4, seed=1, order=2)
    head = HeadModel(made(target))
    found = steps([1, 2, 1, 2, 1], target=target, head=head, depth=0, tokens=12)
    assert not any(step.draft.forwards for step in found)


def test_a_head_drafts_in_place_of_a_model() -> None:
    target = TableTarget(4, seed=1, order=2)
    head = HeadModel(untrained_eagle(target))
    assert any(step.draft.forwards for step in steps([1, 2, 3], target=target, head=head, tokens=20))
    with pytest.raises(ValueError, match="give one of them"):
        auto.build(target, head=head, draft=target)
