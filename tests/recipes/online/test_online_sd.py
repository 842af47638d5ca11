"""What online-sd learns: the target's distribution before sampling parameters, where a token was rejected."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.compose.arms import ArmsDrafter
from outpace.drafters.compose.specialists import Specialist, Specialists
from outpace.drafters.learning.online_learning import LearningDrafter
from outpace.drafters.learning.target_labels import DIVERGENCES, target_label
from outpace.indexes.prompt_profile import PromptProfile
from outpace.models.hf.low_rank import LowRankAdapter
from outpace.models.hf.target import HFTarget
from outpace.models.table import LearningTable, TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import tables, transformers_models
from outpace.proof.suite import Subject, ragged
from outpace.recipes._option_kinds import kind_of
from outpace.recipes.online.online_sd.recipe import online_sd
from outpace.recipes.online.online_sd.rejected_positions import RejectedPositions, Rejections
from outpace.sampling.warp import warp

SAMPLING = [SamplingParams(1.3, max_tokens=40, top_p=0.6, seed=seed) for seed in range(3)]


@cache
def table_target() -> TableTarget:
    target = tables().target
    assert isinstance(target, TableTarget)
    return target


def taught(lessons: type[RejectedPositions]) -> tuple[list[Rejections], list[Step]]:
    """The lessons of three texts, and the steps in which they were decoded."""
    parts, steps = online_sd.build(table_target(), draft=tables().drafts[0], depth=3), list[Step]()
    assert isinstance(parts.drafter, LearningDrafter)
    model: Any = parts.drafter._model
    notes = lessons(model.network, DIVERGENCES["reverse_kl"])
    parts.drafter.learning._lessons = notes
    texts(parts, [(0, 1), (2,), (1,)], SAMPLING, observe=steps.append)
    found = [lesson for lesson in parts.drafter.learning._ready if isinstance(lesson, Rejections)]
    return found, steps


class AfterTopP(RejectedPositions):
    """Wrong: learns the distribution that tokens are drawn from."""

    def label(self, step: Step, row: int, logits: Tensor) -> Tensor:
        return warp(logits[None].clone(), [step.ctx.sampling[row]])[0].log()


class Everywhere(RejectedPositions):
    """Wrong: also learns after drafts that were accepted as a whole, and beyond the end of texts."""

    def is_rejection(self, step: Step, row: int) -> bool:
        return bool(step.generated[row])


def faults(lessons: type[RejectedPositions]) -> set[str]:
    """What is wrong with the lessons of three texts, found from the records of the steps."""
    found, steps = taught(lessons)
    expected: dict[tuple[int, ...], Tensor] = {}
    for step in steps:
        forest, tokens = step.draft.tree.forest, step.draft.tree.token_list()
        for row, generated in enumerate(step.generated):
            accepted = 0
            for node, token in zip(forest.path(step.verdict.leaf[row])[1:], generated, strict=False):
                accepted += tokens[node] == token
            below = forest.children[step.verdict.leaf[row]]
            if below and len(generated) == accepted + 1 and tokens[below[0]] != generated[-1]:
                text = (*step.ctx.tokens[row].tolist(), *generated[:-1])
                expected[text] = table_target().logits[table_target().state(text)].log_softmax(-1)
    positions = {
        tuple(lesson.tokens[: at + 1].tolist()): log_p
        for lesson in found
        for at, log_p in zip(lesson.at, lesson.log_p, strict=True)
    }
    wrong = {"positions"} if positions.keys() != expected.keys() else set[str]()
    common = positions.keys() & expected.keys()
    assert len(common) > 20
    if not all(torch.allclose(positions[text], expected[text]) for text in common):
        wrong.add("labels")
    if not all(lesson.loss(lesson.network.weights).isfinite() for lesson in found):
        wrong.add("loss")
    return wrong


def test_what_is_learned_is_the_targets_own_distribution_where_a_token_was_rejected() -> None:
    assert faults(RejectedPositions) == set()
    assert faults(AfterTopP) == {"labels", "loss"}
    assert faults(Everywhere) == {"positions"}


def test_the_loss_is_the_divergence_at_the_positions_alone() -> None:
    """Against a sum by hand, of a draft model that lacks the target's last token."""
    draft = transformers_models().drafts[0]
    assert isinstance(draft, HFTarget)
    adapter = LowRankAdapter(draft.fitted(5))
    assert adapter.target.vocab == 5
    tokens, at = torch.tensor([0, 1, 4, 2, 3]), (1, 3)
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    read = torch.tensor([[0, 1, 3, 2]])  # the draft model reads its own last token in place of one it lacks
    with torch.no_grad():
        log_q = draft.model(read).logits[0, [1, 3]].log_softmax(-1)
    log_p = logits[:, :4].log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    mixed = (0.9 * p + 0.1 * q).log()
    by_hand = {
        "forward_kl": p * (log_p - log_q),
        "reverse_kl": q * (log_q - log_p),
        "jsd": 0.9 * p * (log_p - mixed) + 0.1 * q * (log_q - mixed),
    }
    for name, divergence in DIVERGENCES.items():
        lesson = Rejections(adapter.network, divergence, tokens, at, target_label(logits))
        torch.testing.assert_close(lesson.loss(adapter.weights), by_hand[name].sum())


def test_a_text_beyond_the_models_length_is_read_from_its_end() -> None:
    adapter = LowRankAdapter(transformers_models().drafts[0])
    tokens, log_p = torch.arange(90) % 4, target_label(torch.zeros(2, 4, dtype=torch.float64))
    lesson = Rejections(adapter.network, DIVERGENCES["forward_kl"], tokens, (10, 80), log_p)
    alone = Rejections(adapter.network, DIVERGENCES["forward_kl"], tokens[17:], (63,), log_p[1:])
    torch.testing.assert_close(lesson.loss(adapter.weights), alone.loss(adapter.weights))


def test_a_token_without_probability_has_a_finite_loss() -> None:
    label = target_label(torch.tensor([[0.0, -math.inf, -2000.0]]))
    model = LearningTable(table_target())
    for divergence in DIVERGENCES.values():
        assert Rejections(model, divergence, torch.tensor([1]), (0,), label).loss(model.weights).isfinite()


def test_a_table_learns_without_changing_the_one_that_it_began_as() -> None:
    before = table_target().logits.clone()
    model = LearningTable(table_target())
    model.use((model.weights[0] + 1,))
    assert torch.equal(table_target().logits, before) and not torch.equal(model.target.logits, before)


def test_the_length_of_drafts_is_replanned_if_asked() -> None:
    parts: Parts = online_sd.build(table_target(), draft=tables().drafts[0], depth=3, adaptive=True)
    lengths = set[int]()
    texts(parts, [(0, 1)], SAMPLING[:1], observe=lambda step: lengths.add(len(step.draft.tree) - 1))
    assert len(lengths) > 1


def test_a_specialist_learns_from_the_prompts_of_its_kind_alone() -> None:
    """Two kinds of prompts in turn; a draft model per kind keeps what it has learned of its own."""
    target, drafts = table_target(), tables().drafts
    profiles = [PromptProfile.learned([[token] * 3] * 4, target.vocab) for token in (0, 1)]
    specialists = Specialists(
        tuple(Specialist(drafts[0], profile) for profile in profiles)  # both begin as the same model
    )
    parts = online_sd.build(target, draft=drafts[0], specialists=specialists, depth=2, positions=4)
    assert isinstance(parts.drafter, ArmsDrafter)
    arms: Any = [arm.drafter for arm in parts.drafter._arms]
    assert all(isinstance(arm, LearningDrafter) for arm in arms)

    def numbers() -> list[int]:
        return [arm.learning.versions.num_updates for arm in arms]

    prompts = [(0, 0, 0), (0, 0), (0, 0, 0)]
    texts(parts, prompts, SAMPLING)
    first = numbers()
    assert first[0] == first[2] == 0 < first[1]
    before = [arm._model.weights[0] for arm in arms]
    texts(parts, [(1, 1, 1), (1, 1), (1, 1, 1)], SAMPLING)
    second = numbers()
    assert second[0] == 0 < second[2] and second[1] == first[1]
    assert arms[1]._model.weights[0] is before[1] and arms[2]._model.weights[0] is not before[2]
    # rows of both kinds in one batch
    texts(parts, [(0, 0, 0), (1, 1, 1), (0, 0)], SAMPLING)
    assert numbers()[1] > second[1] and numbers()[2] > second[2]
    accepted = [arm.learning.versions.current.tested for arm in arms]
    assert accepted[0] == 0


@pytest.mark.slow
def test_it_is_exact_with_specialists() -> None:
    models = tables()
    kind = kind_of(Specialists)
    assert kind is not None
    options = {"draft": models.drafts[0], "specialists": kind.fixture(models), "depth": 2, "positions": 2}
    proof = Subject(online_sd, options, models).prove(ragged, 1000)
    assert proof.holds and proof.deepest >= 2, proof.verdict
