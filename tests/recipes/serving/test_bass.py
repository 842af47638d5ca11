"""BASS: one draft length for the batch follows the best row; each row keeps what it accepted."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.cuda_graphs.graph_replay import GraphReplay
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumerated_noise import NotRepeatable
from outpace.proof.enumeration import BOUND, Case, Leak, enumerate_distributions, largest_error
from outpace.proof.joint import Group, enumerate_joint, largest_joint_error
from outpace.proof.models import Models, transformers_models
from outpace.proof.mutants.joint import joint_variants
from outpace.proof.per_row_controller import controllers_by_row
from outpace.proof.reference import table_logits
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.serving.bass import BatchLength, bass
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rejection import Rejection

TARGET, DRAFT = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)
LOGITS = table_logits(TARGET.logits, TARGET.state)


def adapted(controller: BatchLength, accepted: Sequence[Sequence[int]]) -> list[int]:
    """The length after each step with these numbers of accepted tokens per row."""
    found = []
    for rows in accepted:
        controller._adapt(rows)
        found.append(controller._depth)
    return found


def test_the_length_follows_the_papers_rule() -> None:
    full = [([length], length + 2) for length in range(7, 31, 2)]
    assert adapted(BatchLength(), [rows for rows, _ in full]) == [after for _, after in full]
    script = [
        ((3, 7, 0), 9),  # one row accepted all 7
        ((2, 2, 2), 8),  # 9 - ceil(9 / 10)
        ((0, 1, 0), 6),  # 8 - 1 - 1, as it fell the step before
        ((6, 0), 8),  # grows again: s = 0
        ((0, 0), 7),
        ((6, 0), 6),  # 7 - 1 - 1 = 5, but a row accepted 6
        ((0, 0), 4),
        ((0,), 2),
        ((1,), 1),  # 2 - 1 - 1 = 0, but at least 1
        ((0,), 1),
        ((1, 0), 3),
    ]
    assert adapted(BatchLength(), [rows for rows, _ in script]) == [after for _, after in script]


def test_the_length_falls_by_its_tenth_rounded_up_and_has_a_limit() -> None:
    assert adapted(BatchLength(31), [(31,), (32,), (0,), (0,)]) == [32, 32, 28, 24]  # ceil(32 / 10) is 4
    assert adapted(BatchLength(10), [(9, 0), (0,)]) == [9, 7]
    assert adapted(BatchLength(11), [(0,), (0,)]) == [9, 7]
    assert adapted(BatchLength(4, increment=1, divisor=2, max_depth=5), [(4,), (5,), (0,)]) == [5, 5, 2]


class OnTheMean(BatchLength):
    """Wrong: the length follows the mean of the rows."""

    def _adapt(self, accepted: Sequence[int]) -> None:
        super()._adapt([sum(accepted) // len(accepted)])


class Remembers(BatchLength):
    """Wrong: a fall is counted as a second one although the length grew in between."""

    def _adapt(self, accepted: Sequence[int]) -> None:
        fell = self._fell
        super()._adapt(accepted)
        self._fell = self._fell or fell


@pytest.mark.parametrize("wrong", [OnTheMean, Remembers])
def test_wrong_rules_differ_on_the_script(wrong: type[BatchLength]) -> None:
    script = [(3, 7, 0), (2, 2, 2), (0, 1, 0), (6, 0), (0, 0)]
    assert adapted(wrong(), script) != adapted(BatchLength(), script)


@pytest.mark.parametrize(
    "options", [{"depth": 0}, {"depth": 33}, {"increment": -1}, {"divisor": 0}, {"max_depth": 3}]
)
def test_options_that_mean_nothing_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="give at least"):
        bass.build(TARGET, draft=DRAFT, **options)


def test_defaults_are_the_papers() -> None:
    defaults = {name: option.default for name, option in bass.options.items()}
    assert [defaults[name] for name in ("depth", "increment", "divisor", "max_depth")] == [7, 2, 10, 32]


class Recorded(BatchLength):
    """A BatchLength that records the lengths it plans and the rows by which it adapts them."""

    def __init__(self, depth: int = 7) -> None:
        super().__init__(depth)
        self.planned: list[int] = []
        self.accepted: list[list[int]] = []

    def plan(self, ctx: Context):
        plan = super().plan(ctx)
        assert len(set(plan.depth)) == 1
        self.planned.append(plan.depth[0])
        return plan

    def _adapt(self, accepted: Sequence[int]) -> None:
        self.accepted.append(list(accepted))
        super()._adapt(accepted)


def recorded(draft: TableTarget, depth: int = 7) -> tuple[Parts, Recorded]:
    controller = Recorded(depth)
    return Parts(TARGET, DraftModel(draft), Rejection(), controller), controller


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens)


def test_the_length_stays_while_requests_join_and_begins_anew_without_any() -> None:
    parts, controller = recorded(TARGET)  # the target drafts for itself: all is accepted
    session = Session(parts, [torch.tensor([0])], [greedy(30)], LazyTargetProbs)
    session.add(torch.tensor([1, 2]), greedy(60))
    list(session.steps())
    assert controller.planned[:4] == [7, 9, 11, 13]
    before = len(controller.planned)
    session.add(torch.tensor([2]), greedy(20))
    for number, _ in enumerate(session.steps()):
        if number == 0:
            session.add(torch.tensor([1]), greedy(40))
    assert controller.planned[before : before + 2] == [7, 9]  # the second request joined at length 9


def test_rows_that_only_read_do_not_count() -> None:
    parts, controller = recorded(TARGET, 2)
    prompt = torch.tensor([0, 1, 2] * 8)
    session = Session(parts, (), (), LazyTargetProbs, prompt_tokens=4)
    session.add(torch.tensor([0]), greedy(60))
    session.add(prompt, greedy(3))
    reading = 0
    for step in session.steps():
        counted = [len(generated) - 1 for generated in step.generated if generated]
        reading += any(not generated for generated in step.generated)
        if controller.accepted and len(counted) < len(step.generated):
            assert controller.accepted[-1] == counted
    assert reading > 2


def test_a_step_cut_short_by_the_rows_own_limits_does_not_count() -> None:
    parts, controller = recorded(TARGET, 7)
    texts(parts, [[0], [1]], [greedy(5), greedy(4)])
    assert not controller.accepted


def test_a_draft_that_ends_with_its_text_does_not_count() -> None:
    text = texts(recorded(TARGET)[0], [[0]], [greedy(8)])[0]
    parts, controller = recorded(TARGET, 4)
    texts(parts, [[0]], [SamplingParams(max_tokens=20, stop=(text[1],))])
    assert controller.accepted == []


def short_parts() -> Parts:
    """Lengths that change within a few tokens."""
    return bass.build(TARGET, draft=DRAFT, depth=1, increment=1, max_depth=3)


@pytest.mark.slow
def test_two_rows_with_one_length_are_independent() -> None:
    """The joint distribution of the rows, in which each follows the length that both determine."""
    binary = ((2, float("-inf")),)
    row = SamplingParams(1.0, max_tokens=4, logit_bias=binary)
    groups = [Group((1, 1), (row, row))], [Group((0,), (greedy(6), SamplingParams(0.7, max_tokens=3)))]
    lengths = set[int]()

    def build() -> Parts:
        parts = short_parts()
        plan = parts.controller.plan

        def watched(ctx: Context):
            planned = plan(ctx)
            lengths.update(planned.depth)
            return planned

        parts.controller.plan = watched
        return parts

    for each in groups:
        found = enumerate_joint(build, each)
        assert largest_joint_error(found, LOGITS, each) < BOUND
        assert lengths == {1, 2, 3} and found.counts.accepted


@pytest.mark.slow
def test_rows_cut_to_the_shortest_are_caught() -> None:
    [wrong] = [each for each in joint_variants(TARGET) if each.name == "batch: cut to the shortest row"]
    groups = [Group((1, 1), tuple(SamplingParams(1.0, top_k=2, max_tokens=tokens) for tokens in (3, 2)))]
    found = enumerate_joint(wrong.build, groups, batch=1, replays=0)
    assert largest_joint_error(found, LOGITS, groups) > 1e-4


def test_a_run_can_be_repeated_only_with_a_length_of_its_own() -> None:
    cases = [Case((0, 1), SamplingParams(1.0, max_tokens=4)), Case((2,), SamplingParams(1.0, max_tokens=3))]
    found = enumerate_distributions(controllers_by_row(short_parts), cases)
    assert largest_error(found, LOGITS, cases) < BOUND
    with pytest.raises((Leak, NotRepeatable)):
        enumerate_distributions(short_parts, cases)


@cache
def small() -> Models:
    return transformers_models(vocab=12)


PROMPTS = [[1, 2, 3, 1], [4], [5, 6, 5, 6, 5, 6, 7], [11, 0]]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_greedy_drafts_give_every_row_the_text_it_gets_alone(temperature: float) -> None:
    models = small()
    sampling = [SamplingParams(temperature, max_tokens=18 + row, seed=row) for row in range(4)]

    def parts() -> Parts:
        return bass.build(models.target, draft=models.drafts[0], depth=3, sampled=False)

    together = texts(parts(), PROMPTS, sampling)
    assert together == [texts(parts(), [p], [s])[0] for p, s in zip(PROMPTS, sampling, strict=True)]


def with_layout(layout: str) -> Parts:
    """Target and draft whose attention pads all rows to one length, in one call, or calls each row apart."""
    targets = [HFTarget(copy.deepcopy(each.model)) for each in (small().target, small().drafts[0])]
    if layout == "pad":
        for target in targets:
            target.reader = GraphReplay(target.forward, lambda run: run)
    return bass.build(targets[0], draft=targets[1])


def test_padded_and_split_attention_agree() -> None:
    sampling = [SamplingParams(0.8 * (row % 2), max_tokens=20, seed=row) for row in range(4)]
    runs: dict[str, list[Step]] = {}
    for layout in ("pad", "split"):
        prompts = [torch.tensor(prompt) for prompt in PROMPTS]
        runs[layout] = list(Session(with_layout(layout), prompts, sampling, LazyTargetProbs).steps())
    unequal = 0
    for padded, split in zip(runs["pad"], runs["split"], strict=True):
        assert padded.generated == split.generated
        assert padded.scores.logits is not None and split.scores.logits is not None
        torch.testing.assert_close(padded.scores.logits, split.scores.logits, rtol=0, atol=1e-10)
        unequal += len(set(padded.ctx.committed)) > 1
    assert unequal > 3


def test_rows_keep_more_than_their_common_prefix() -> None:
    """The mean tokens per row and step beside those if all rows kept what the shortest of them accepted."""
    target, draft = TableTarget(12, seed=1, order=1, spread=3.0), TableTarget(12, seed=1, order=1, spread=2.5)
    parts = Parts(target, DraftModel(draft), Rejection(), Fixed(5))
    own = common = rows = 0
    for build in (parts, bass.build(target, draft=draft)):
        sampling = [SamplingParams(1.0, max_tokens=60, seed=seed) for seed in range(8)]
        session = Session(build, [torch.tensor([row]) for row in range(8)], sampling, LazyTargetProbs)
        for step in session.steps():
            lengths = [len(generated) for generated in step.generated]
            own, common, rows = own + sum(lengths), common + min(lengths) * len(lengths), rows + len(lengths)
    assert own / rows > 1.5 * common / rows


def test_rows_leave_when_they_end() -> None:
    parts = bass.build(TARGET, draft=TARGET)
    session = Session(parts, [torch.tensor([0])] * 3, [greedy(4), greedy(12), greedy(40)], LazyTargetProbs)
    sizes = [len(step.ctx.slots) for step in session.steps()]
    assert sizes[0] == 3 and sizes[-1] == 1 and sizes == sorted(sizes, reverse=True)


def ended_by(parts: Parts, budget: float) -> tuple[int, float, float]:
    """Number of rows that end within a time budget, and the times of the first and the last end. A forward of
    the target takes 1, one of the draft model 0.1, and every token of a forward 0.01."""
    sampling = [SamplingParams(1.0, max_tokens=12 + 4 * row, seed=row) for row in range(8)]
    session = Session(parts, [torch.tensor([row]) for row in range(8)], sampling, LazyTargetProbs)
    now, ends = 0.0, list[float]()
    for step in session.steps():
        now += 1 + 0.1 * step.draft.forwards + 0.01 * len(step.draft.tree)
        ends += [now] * len(step.finished)
    return sum(end <= budget for end in ends), ends[0], ends[-1]


def test_more_samples_end_within_a_time_budget_than_by_plain_decoding() -> None:
    target, draft = TableTarget(12, seed=1, order=1, spread=3.0), TableTarget(12, seed=1, order=1, spread=2.5)
    (fast, first, last), (slow, plain_first, plain_last) = (
        ended_by(parts, 30.0) for parts in (bass.build(target, draft=draft), autoregressive.build(target))
    )
    assert fast > slow > 0 and first < plain_first and last < plain_last
    wrong = bass.build(target, draft=TableTarget(12, seed=9, order=1, spread=9.0))
    assert ended_by(wrong, 30.0)[0] < slow  # drafts that are hardly ever accepted only take time
