"""A head in training sees what it sees while drafting."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.eager.captures import OutputCapture
from outpace.models.heads.chimera.head import untrained_chimera
from outpace.models.heads.coral.head import untrained_coral
from outpace.models.heads.dovetail.head import untrained_dovetail
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle3.head import untrained_eagle3
from outpace.models.heads.fspad.head import untrained_fspad
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.config import Head
from outpace.training.features import FeatureSource
from outpace.training.lessons.feature_heads import FeatureHeadLesson, features_of
from outpace.training.methods import named
from outpace.training.texts import Example
from outpace.training.unrolled import unrolled
from outpace.verifiers.match import Match

VOCAB, LENGTH, STEPS = 8, 18, 4
OBJECTIVES: Any = {name: cast(Any, named(name)).objective for name in ("eagle", "hass", "eagle3")}
HEADS = {
    "chimera": untrained_chimera,
    "coral": untrained_coral,
    "dovetail": untrained_dovetail,
    "eagle": untrained_eagle,
    "eagle of two layers": partial(untrained_eagle, num_layers=2),
    "eagle3": untrained_eagle3,
    "fspad": untrained_fspad,
}


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


def head_of(kind: str) -> DraftHead:
    head = HEADS[kind.split(",")[0]](target(), seed=2)
    if kind.endswith("normed output"):
        head.state_layer = -1
    return head


def greedy_text(prompt: list[int]) -> list[int]:
    params = SamplingParams(0, max_tokens=LENGTH - len(prompt))
    session = Session(autoregressive.build(target()), [torch.tensor(prompt)], [params], LazyTargetProbs)
    list(session.steps())
    return session.request(0).text().tolist()


def source(*texts: list[int], first: int = 2, folder: str = "none") -> FeatureSource:
    layers = sorted({-1, *range(target().num_layers)})
    from pathlib import Path

    return FeatureSource(target(), [Example(tuple(each), first) for each in texts], layers, Path(folder))


def drafted(head: DraftHead, tokens: Tensor, features: Tensor, start: int, count: int) -> Tensor:
    """(F,) the feature that a draft from column `start` has after `count` further tokens of the text, by
    forwards over the whole text without a cache."""
    plain = copy.deepcopy(head)
    features = features[: start + 1]
    for step in range(count + 1):
        end = start + 1 + step
        with OutputCapture(plain, 1).capture(frozenset({plain.state_layer}), True) as found:
            plain(tokens[None, 1 : end + 1], torch.arange(end)[None], None, features[None])
        state = found[plain.state_layer][0, -1:]
        features = torch.cat((features, state))
    return state[0]


@pytest.mark.parametrize("kind", [*HEADS, "eagle3, normed output"])
def test_every_column_and_step_equals_a_draft_that_begins_there(kind: str) -> None:
    head, tokens = head_of(kind), torch.tensor([greedy_text([1, 2]), greedy_text([5, 0, 3])])
    batch = source(*tokens.tolist()).batch([0, 1])
    with torch.no_grad():
        features = features_of(head, batch)
        columns = torch.zeros(features.shape[:2], dtype=torch.bool)
        columns[0, 2::3] = columns[1, 7::4] = True
        wanted = columns.nonzero().tolist()
        steps = list(unrolled(head, tokens, features, columns, STEPS))
        compared = 0
        for each in steps:
            assert len(each.features) == len(wanted) == len(each.states)
            for found, (row, column) in zip(each.features, wanted, strict=True):
                if column < LENGTH - 1 - each.step:
                    expected = drafted(head, tokens[row], features[row], column, each.step)
                    assert (found - expected).abs().max() < 1e-9
                    compared += 1
        assert compared > 20


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_agreement_is_what_decoding_accepts(kind: str) -> None:
    """On the target's greedy text: the tokens accepted in a step are those that agree at its column."""
    head, prompt = head_of(kind), [1, 2, 6]
    drafter = FeatureDrafter(HeadModel(head), VOCAB, lambda *rest: grow(*rest, sampled=False), sampled=False)
    accepted = {}
    for start in range(3, LENGTH - STEPS - 1):
        text = greedy_text(prompt)[:start]
        params = SamplingParams(0, max_tokens=STEPS + 2)
        session = Session(
            Parts(target(), drafter, Match(), Fixed(STEPS)), [torch.tensor(text)], [params], LazyTargetProbs
        )
        first = next(step for step in session.steps() if any(step.generated))
        accepted[start] = len(first.generated[0]) - 1
    lesson = FeatureHeadLesson(head, target().head, OBJECTIVES["eagle3"], Head())
    for start, count in accepted.items():
        # the only column whose drafts lie in the text and begin after `start` tokens
        text = greedy_text(prompt)[: start + STEPS]
        counts = lesson.agreement(source(text, first=start).batch([0]), STEPS).tolist()
        assert counts[0] == 1 and sum(counts[2:]) == count
    assert 0 < sum(accepted.values()) < STEPS * len(accepted)


def test_with_one_step_and_without_top_k_hass_learns_what_eagle_learns() -> None:
    head = head_of("eagle")
    batch = source(greedy_text([1, 2]), greedy_text([4])).batch([0, 1])
    settings = Head(unroll=1, noise=0.0, top_k_weight=0.0)
    found = {}
    for name in ("eagle", "hass"):
        found[name] = FeatureHeadLesson(head, target().head, OBJECTIVES[name], settings)(
            batch, torch.Generator()
        )
    assert torch.equal(found["eagle"], found["hass"]) and found["eagle"] > 0


def hand_computed(method: str, head: DraftHead, text: list[int], first: int, settings: Head) -> float:
    """The loss of a head on one text, column by column, from the target's own forward over the text."""
    batch = source(text, first=first).batch([0])
    with torch.no_grad():
        logits = target().model(torch.tensor([text]), use_cache=False).logits[0]
        taps = torch.cat([batch.hidden[layer] for layer in head.taps], -1)
        features, total = head.fuse(taps)[:, :-1], 0.0
        columns = torch.ones(features.shape[:2], dtype=torch.bool)
        steps = settings.unroll if method != "eagle" else 1
        for each in unrolled(head, torch.tensor([text]), features, columns, steps):
            losses: list[float] = []
            for column in range(LENGTH - 1):
                label = column + 2 + each.step
                if not first <= label < LENGTH:
                    continue
                p = logits[label - 1].softmax(-1)
                log_q = head.lm_head(head.norm(each.states[column])).log_softmax(-1)
                loss = -float((p * log_q).sum())
                if method != "eagle3":
                    apart = (each.features[column] - batch.hidden[-1][0, label - 1]).abs()
                    distance = torch.where(apart < 1, apart**2 / 2, apart - 0.5).mean()
                    loss = float(distance) + 0.1 * loss
                if method == "hass":
                    best = p.argsort(descending=True)[: settings.top_k]
                    loss -= settings.top_k_weight * float((p[best] * log_q[best]).sum())
                losses.append(loss)
            total += (0.8**each.step if method == "eagle3" else 1) * sum(losses) / len(losses)
    return total


@pytest.mark.parametrize(
    ("method", "top_k_weight"), [*((method, 1.0) for method in OBJECTIVES), ("hass", 0.25)]
)
def test_a_loss_is_the_papers_sum_over_steps(method: str, top_k_weight: float) -> None:
    """EAGLE: distance of features plus a tenth of the cross entropy; HASS: also the top-k loss, at every
    step; EAGLE-3: cross entropy, each further step with 0.8 of the weight of the one before."""
    settings = Head(noise=0.0, top_k=3, top_k_weight=top_k_weight)
    head = head_of("eagle3" if method == "eagle3" else "eagle")
    text = greedy_text([1, 2])
    found = FeatureHeadLesson(head, target().head, OBJECTIVES[method], settings)(
        source(text, first=5).batch([0]), torch.Generator()
    )
    assert found.item() == pytest.approx(hand_computed(method, head, text, 5, settings), rel=1e-5)


def test_what_each_method_does_with_features() -> None:
    """HASS cuts the gradient through its own outputs, EAGLE-3 does not; EAGLE and HASS add uniform noise of
    width 0.2 * 512 / length to the target's features, EAGLE-3 none."""
    given: dict[str, tuple[Tensor, int, bool]] = {}

    def recorded(head, tokens, features, columns, steps, *, detached):
        given[method] = features, steps, detached
        return unrolled(head, tokens, features, columns, steps, detached=detached)

    batch, width = source(greedy_text([1, 2])).batch([0]), 0.2 * 512 / LENGTH
    for method, objective in OBJECTIVES.items():
        head = head_of("eagle3" if method == "eagle3" else "eagle")
        FeatureHeadLesson(head, target().head, replace(objective, run=recorded), Head())(
            batch, torch.Generator().manual_seed(1)
        )
        taps = torch.cat([batch.hidden[layer] for layer in head.taps], -1)
        difference = (given[method][0] - head.fuse(taps)[:, :-1]).abs().max().item()
        expected = 0 if method == "eagle3" else width / 2
        assert difference == pytest.approx(expected, rel=0.05) and difference <= expected
    assert {name: rest for name, (_, *rest) in given.items()} == {
        "eagle": [1, False],
        "hass": [3, True],
        "eagle3": [3, False],
    }


def test_gradients_reach_earlier_outputs_only_where_the_method_says(monkeypatch) -> None:
    head = head_of("eagle")
    tokens = torch.tensor([greedy_text([1, 2])])
    features = torch.randn(1, LENGTH - 1, head.feature_size, dtype=torch.float64, requires_grad=True)
    columns = torch.ones(1, LENGTH - 1, dtype=torch.bool)
    states, read = head.states, []
    monkeypatch.setattr(head, "states", lambda *given: read.append(given[1]) or states(*given))
    for detached in (False, True):
        read.clear()
        list(unrolled(head, tokens, features, columns, 2, detached=detached))
        assert read[0].requires_grad and read[1].requires_grad != detached


def test_only_answers_count_and_padding_does_not() -> None:
    head = head_of("eagle3")
    lesson = FeatureHeadLesson(head, target().head, OBJECTIVES["eagle3"], Head())
    text, short = greedy_text([1, 2]), greedy_text([3])[:11]
    alone = [lesson(source(each, first=6).batch([0]), torch.Generator()) for each in (text, short)]
    both = lesson(source(text, short, first=6).batch([0, 1]), torch.Generator())
    # at every step the tokens of the answer are predicted, by other columns
    sizes = [len(each) - 6 for each in (text, short)]
    expected = sum(loss.item() * size for loss, size in zip(alone, sizes, strict=True)) / sum(sizes)
    assert both.item() == pytest.approx(expected, rel=1e-9)
