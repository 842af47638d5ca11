"""Draft models and heads that learn while they draft: their texts, and when their weights change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Scores, Step, TargetProbs, Verdict
from outpace.core.noise import Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.learning.online_learning import LearningDrafter
from outpace.models.heads.eagle3.head import untrained_eagle3
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, transformers_models
from outpace.proof.per_row_drafter import Apart
from outpace.recipes.online.aurora import aurora
from outpace.recipes.online.online_sd.recipe import online_sd
from outpace.sampling.target_probs import LazyTargetProbs

NAMES = ("online-sd", "aurora")
LEARN: dict[str, Any] = {"positions": 2, "learning_rate": 0.02, "depth": 3}


@cache
def models() -> Models:
    return transformers_models()


@cache
def given_head() -> HeadModel:
    target = models().target
    assert isinstance(target, HFTarget)
    return HeadModel(untrained_eagle3(target, 1))


def learning_parts(name: str, **options: Any) -> Parts:
    if name == "aurora":
        return aurora.build(models().target, **{"head": given_head(), **options})
    return online_sd.build(models().target, **{"draft": models().drafts[0], **options})


def learner(parts: Parts) -> LearningDrafter:
    assert isinstance(parts.drafter, LearningDrafter)
    return parts.drafter


def weights(parts: Parts) -> list[Tensor]:
    """The weights that the model drafts with."""
    model: Any = learner(parts)._model
    own = getattr(model.network, "own", None)
    return [each.detach().clone() for each in (model.weights if own is None else own.values())]


def requests(count: int, seed: int, temperature: float = 1.0, **others: Any) -> list[SamplingParams]:
    return [
        SamplingParams(temperature, max_tokens=30, seed=100 * seed + row, **others) for row in range(count)
    ]


def acceptance(parts: Parts, seeds: Sequence[int], temperature: float = 1.0) -> float:
    """Accepted tokens of those that were drafted for four requests per seed."""
    drafted = accepted = 0

    def count(step: Step) -> None:
        nonlocal drafted, accepted
        drafted += len(step.draft.tree) - len(step.ctx.slots)
        accepted += sum(step.draft.tree.forest.depths[node] for node in step.kept)

    for seed in seeds:
        texts(parts, [(row % 3, 1) for row in range(4)], requests(4, seed, temperature), observe=count)
    return accepted / drafted


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_distribution_is_the_targets_while_weights_change(name: str) -> None:
    """Each run begins with the given weights, so that it can be repeated, and learns in most steps."""
    cases = [
        Case((0, 1, 2), SamplingParams(temperature=1.0, max_tokens=4, top_k=2)),
        Case((1, 2), SamplingParams(max_tokens=6)),
    ]
    updates: list[int] = []

    class Counted(Apart):
        def observe(self, step: Step) -> None:
            super().observe(step)
            for each in self._drafters.values():
                assert isinstance(each, LearningDrafter)
                updates.append(each.learning.versions.num_updates)

    often = {**LEARN, "positions": 1, "depth": 2}
    example = learning_parts(name, **often)
    found = enumerate_distributions(
        lambda: replace(
            example, drafter=Counted(example.drafter, lambda: learning_parts(name, **often).drafter)
        ),
        cases,
        replays=1,
        most=300,
    )
    assert largest_error(found, models().logits, cases) < 1e-10
    assert max(updates) >= 2 and found.counts.accepted > 5


class Watched:
    """Implementation of core.contracts.Drafter and Verifier: those of other parts. Compares the weights when
    a draft begins, when it ends, and before and after its verification."""

    learns_across_rows, drafts_across_rows = True, False

    def __init__(self, parts: Parts, check: Callable[[TokenTree, Context], None] | None = None) -> None:
        self._parts, self._check = parts, check
        self.want, self.claims = parts.drafter.want, parts.drafter.claims
        self.accepts, self.guarantee = parts.verifier.accepts, parts.verifier.guarantee
        self.weights = weights(parts)
        self.versions = self.changes = 0

    def _differ(self) -> bool:
        return not all(map(torch.equal, self.weights, weights(self._parts)))

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self.versions += self._differ()
        self.weights, self._ctx = weights(self._parts), ctx
        draft = self._parts.drafter.propose(ctx, plan)
        self.changes += self._differ()
        return draft

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        if self._check is not None:
            self._check(tree, self._ctx)
        verdict = self._parts.verifier.verify(tree, target_probs, scores, noise)
        self.changes += self._differ()
        return verdict

    def observe(self, step: Step) -> None:
        self._parts.drafter.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._parts.drafter.release(slots)


def watched(name: str, check: Callable[[TokenTree, Context], None] | None = None, **options: Any) -> Watched:
    """Decodes three rows of different lengths, and further requests that join while others are in flight."""
    parts = learning_parts(name, **LEARN, **options)
    found = Watched(parts, check)
    sampling = [SamplingParams(1.0, max_tokens=length, seed=length) for length in (9, 17, 26)]
    session = Session(
        replace(parts, drafter=found, verifier=found),
        [torch.tensor([row]) for row in range(3)],
        sampling,
        LazyTargetProbs,
    )
    for number, _ in enumerate(session.steps()):
        if number in (3, 5, 11):
            session.add(torch.tensor([1, 2, 0]), SamplingParams(1.0, max_tokens=12, seed=number))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_weights_change_between_steps_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(name)
    assert found.changes == 0 and found.versions > 5

    def early(self: LearningDrafter, ctx: Context, plan: Plan) -> Draft:
        draft = self.drafter.propose(ctx, plan)
        self.learning._update()
        return draft

    monkeypatch.setattr(LearningDrafter, "propose", early)
    assert watched(name).changes > 0  # an update while a draft is pending would be seen


@pytest.mark.parametrize("name", NAMES)
def test_greedy_texts_are_those_of_plain_decoding(name: str) -> None:
    """In a batch with rows that end while the weights change."""
    parts, versions = learning_parts(name, **{**LEARN, "positions": 1}), set[str]()
    prompts = [(0, 1, 2), (1,), (2, 2), (0,)]
    sampling = [SamplingParams(max_tokens=length) for length in (4, 9, 15, 24)]

    def note(step: Step) -> None:
        versions.add(learner(parts).learning.versions.current.fingerprint)

    found = texts(parts, prompts, sampling, observe=note)
    for prompt, params, text in zip(prompts, sampling, found, strict=True):
        plain = prompt
        for _ in range(params.max_tokens):
            plain = (*plain, int(models().logits([plain]).argmax()))
        assert text == list(plain[len(prompt) :])
    assert len(versions) > 3


def test_after_an_update_no_entries_of_the_weights_before_are_used() -> None:
    compared = 0
    parts = learning_parts("online-sd", **LEARN)
    model: Any = learner(parts)._model

    def check(tree: TokenTree, ctx: Context) -> None:
        nonlocal compared
        for row, tokens in enumerate(ctx.tokens):
            if len(tree.forest.nodes[row]) > 1 and isinstance(tree.claim, Drawn):
                found = tree.claim.q[tree.claim.row[tree.forest.nodes[row][1]]]
                torch.testing.assert_close(found, model.network.logits(tokens, model.weights)[-1].softmax(-1))
                compared += 1

    seen = Watched(parts, check)
    texts(replace(parts, drafter=seen, verifier=seen), [(0,), (1, 2)], requests(2, 1))
    assert compared > 20 and seen.versions > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_learning_raises_acceptance(name: str) -> None:
    frozen = learning_parts(name, depth=3, requests=10**6, positions=10**6)
    learning = learning_parts(name, depth=3, requests=4, positions=64, learning_rate=1e-2)
    acceptance(learning, range(3))
    assert acceptance(learning, [3, 4]) > 1.3 * acceptance(frozen, [3, 4])
    trainer: Any = learner(learning).learning.versions.trainer
    assert trainer.num_failed == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_that_is_no_number_leaves_the_last_version(name: str) -> None:
    parts = learning_parts(name, **LEARN)
    texts(parts, [(0, 1)], requests(1, 0))
    versions = learner(parts).learning.versions
    trainer: Any = versions.trainer
    good, adam, before = versions.current, trainer._adam, weights(parts)
    update = adam.update
    adam.update = lambda losses: update(lambda given: (math.nan * loss for loss in losses(given)))
    with pytest.warns(UserWarning, match="keeps the weights from before an update: it was not finite"):
        found = texts(parts, [(0, 1), (2,)], requests(2, 1))
    assert [len(text) for text in found] == [30, 30] and trainer.num_failed > 5
    assert versions.current is good and all(map(torch.equal, weights(parts), before))


@pytest.mark.parametrize("name", NAMES)
def test_the_given_model_stays_as_it_is_and_no_global_random_numbers_are_used(name: str) -> None:
    opened: Any = models().drafts[0] if name == "online-sd" else given_head()
    given: Any = opened.model if name == "online-sd" else opened.head
    before = {key: each.clone() for key, each in given.state_dict().items()}
    state = torch.random.get_rng_state()
    some = [learning_parts(name, **LEARN) for _ in range(2)]
    found = [texts(parts, [(0, 1), (2,)], requests(2, 7)) for parts in some]
    assert found[0] == found[1] and all(map(torch.equal, weights(some[0]), weights(some[1])))
    assert learner(some[0]).learning.versions.num_updates > 5
    assert all(torch.equal(each, before[key]) for key, each in given.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("name", NAMES)
def test_options_that_cannot_be_met_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="learning_rate is 0"):
        learning_parts(name, learning_rate=0.0)
    with pytest.raises(ValueError, match="requests is 0"):
        learning_parts(name, requests=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_drafter_runs_eagerly_while_it_learns(name: str) -> None:
    given: Any = given_head().model if name == "aurora" else models().drafts[0]
    reader = given.reader
    given.reader = object()  # as of a compiled model
    try:
        with pytest.warns(UserWarning, match="runs eagerly while it learns"):
            parts = learning_parts(name, **LEARN)
    finally:
        given.reader = reader
    texts(parts, [(0, 1)], requests(1, 3))
    assert learner(parts).learning.versions.num_updates > 2
