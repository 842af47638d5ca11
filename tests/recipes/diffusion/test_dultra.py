"""dUltra: a planner says which masks of a window each forward reveals, and learns it from rewards."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.windows import as_many_as_expected
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.folder import load_predictor, save_predictor
from outpace.models.predictors.reveals.lesson import (
    RevealLesson,
    drawn,
    expected,
    log_prob,
    surest,
    whole_windows,
)
from outpace.models.predictors.reveals.predictor import RevealPlanner, untrained_reveal_planner
from outpace.proof.models import transformers_models
from outpace.recipes.diffusion.dultra import dultra
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.config import Reveals
from outpace.training.features import Batch
from outpace.training.method import frozen_head
from outpace.training.methods import named
from outpace.training.texts import Example
from outpace.training.window_drafts import WindowDrafts, WindowForward, tokens_of

VOCAB, MASK, DEPTH = 12, 12, 5  # the draft model has two tokens more than the target
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 4))
TEXTS = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 3], [5, 3, 1, 9, 11, 2, 0, 4, 7, 8, 1, 1]])


@cache
def models() -> tuple[HFTarget, HFTarget]:
    """A target, and a draft model of four layers with a mask."""
    target, draft = transformers_models(vocab=VOCAB).target, transformers_models(vocab=VOCAB + 2).deep_draft
    assert isinstance(target, HFTarget) and isinstance(draft, HFTarget)
    return target, draft


@cache
def planner() -> RevealPlanner:
    return untrained_reveal_planner(models()[1]).double()


def parts_of(predictor: RevealPlanner | None = None) -> Parts:
    target, draft = models()
    options = {"predictor": predictor or planner(), "depth": DEPTH, "mask": MASK}
    return dultra.build(target, draft=draft.fitted(VOCAB), **options)


def alone(text: Tensor, size: int) -> tuple[list[int], int]:
    """A draft of the most probable tokens and its forwards, each of them over the whole text."""
    own: Any = models()[1].model
    window, left, forwards = [MASK] * size, set(range(size)), 0
    while left:
        tokens = torch.cat((text, torch.tensor(window)))
        sees = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
        sees[len(text) :] = True
        added = torch.zeros(sees.shape, dtype=own.dtype).masked_fill(~sees, torch.finfo(own.dtype).min)
        with torch.no_grad():
            states = own.model(tokens[None], attention_mask=added[None, None], use_cache=False)[0][0, -size:]
            best = own.lm_head(states)[:, :VOCAB].argmax(-1)
            share = torch.full((size, 1), len(left) / size, dtype=states.dtype)
            probs = planner()(torch.cat((states, share), 1)).sigmoid()
        at = sorted(left)
        count = max(1, int(probs[at].sum()))
        for place in (at[index] for index in probs[at].topk(count).indices.tolist()):
            window[place] = int(best[place])
            left.remove(place)
        forwards += 1
    return window, forwards


@pytest.mark.slow
def test_drafts_are_those_of_forwards_over_the_whole_text() -> None:
    """With a KV cache and two texts together; the most probable places are revealed in as many forwards as
    the planner says, of which the statistics know."""
    params = [SamplingParams(0.0, max_tokens=24, seed=seed) for seed in range(len(PROMPTS))]
    session = Session(parts_of(), [torch.tensor(each) for each in PROMPTS], params, LazyTargetProbs)
    numbers = set[int]()
    for step in session.steps():
        tree, found = step.draft.tree, list[int]()
        assert tree.claim is None
        for row, nodes in enumerate(tree.forest.nodes):
            if len(nodes) > 1:
                text = step.ctx.tokens[row][: step.ctx.committed[row]]
                tokens, forwards = alone(text, len(nodes) - 1)
                assert tree.tokens[list(nodes[1:])].tolist() == tokens
                found.append(forwards)
        assert step.draft.forwards == max(found, default=0)
        numbers |= {*found}
    assert len(numbers) > 2


def test_as_many_masks_are_revealed_as_expected() -> None:
    assert as_many_as_expected(0, (0.9, 0.2, 0.95)) == [2, 0]
    assert as_many_as_expected(0, (0.1, 0.3, 0.2)) == [1]
    assert as_many_as_expected(0, (0.5 - 1e-7, 0.5, 0.1)) == [0]  # equal but for rounding


def drafts() -> WindowDrafts:
    return WindowDrafts(models()[1].model, DEPTH, MASK, VOCAB)


def batch() -> Batch:
    learns = torch.ones_like(TEXTS, dtype=torch.bool)
    with torch.no_grad():
        hidden = models()[0].model.model(TEXTS, use_cache=False).last_hidden_state
    return Batch(TEXTS, learns, learns, {-1: hidden})


def test_drafts_in_training_are_those_of_decoding() -> None:
    columns = whole_windows(batch(), DEPTH)
    assert columns.sum(1).tolist() == [6, 6]
    tokens, _, forwards = tokens_of(drafts()(TEXTS, columns, partial(expected, planner())))
    for window, (row, column) in enumerate(columns.nonzero().tolist()):
        text = TEXTS[row, : column + 2]
        assert (tokens[window].tolist(), int(forwards[window])) == alone(text, DEPTH)


def test_what_first_is_imitated_reveals_all_probable_tokens() -> None:
    probs = torch.tensor([[0.95, 0.2, 0.9], [0.3, 0.5, 0.99], [0.0, 0.0, 0.0]])
    is_mask = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    found = surest(0.9, torch.empty(0), probs, is_mask)
    assert found.tolist() == [[True, False, True], [False, True, False], [False, False, False]]


def rolled_out(seed: int = 0) -> tuple[list[WindowForward], list[Tensor]]:
    """Sampled drafts, and the log probability of what each forward revealed, noted as it was drawn."""
    noted = list[Tensor]()
    noise = torch.Generator().manual_seed(seed)

    def choose(states: Tensor, draft_probs: Tensor, is_mask: Tensor) -> Tensor:
        revealed = drawn(planner(), noise, states, draft_probs, is_mask)
        probs = planner()(states).sigmoid()
        each = torch.where(revealed, probs, 1 - probs).log()
        noted.append(torch.stack([row[left].sum() for row, left in zip(each, is_mask, strict=True)]))
        return revealed

    columns = whole_windows(batch(), DEPTH)
    return drafts()(TEXTS, columns, choose, copies=3, temperature=1.0, noise=noise), noted


def test_the_log_probability_of_a_draft_is_replayed() -> None:
    """That of what was drawn, with the masks that were kept and those that the forward read: otherwise it is
    another number."""
    forwards, noted = rolled_out()
    assert len(forwards) > 2 and len(noted[0]) == 36
    for forward, as_drawn in zip(forwards, noted, strict=True):
        assert torch.allclose(log_prob(planner(), forward), as_drawn)
    without_kept = replace(forwards[0], is_mask=forwards[0].revealed)
    assert not torch.allclose(log_prob(planner(), without_kept), noted[0])
    other_masks = replace(forwards[1], is_mask=forwards[0].is_mask)
    assert not torch.allclose(log_prob(planner(), other_masks), noted[1])
    # the copies of a window draw their own tokens, and every mask is revealed once
    assert sum(each.revealed.long() for each in forwards).eq(1).all()
    tokens, probs, _ = tokens_of(forwards)
    assert any(len({*map(tuple, group.tolist())}) > 1 for group in tokens.view(-1, 3, DEPTH))
    assert (tokens < VOCAB).all() and (0 < probs).all() and (probs <= 1).all()


def lesson(settings: Reveals, made: RevealPlanner | None = None) -> RevealLesson:
    own = made or planner()
    return RevealLesson(own, drafts(), frozen_head(models()[0]), settings, temperature=1.0)


def test_drafts_are_rewarded_for_accepted_tokens_and_compared_with_others_of_their_window() -> None:
    settings, columns = Reveals(group=3, cost=0.5, distillation=0.2), whole_windows(batch(), DEPTH)
    made, (forwards, _) = lesson(settings), rolled_out()
    tokens, probs, counts = tokens_of(forwards)
    # the text's own tokens in one draft: otherwise a model without training has hardly one accepted
    labels = [TEXTS[row, column + 2 : column + 2 + DEPTH] for row, column in columns.nonzero().tolist()]
    tokens[1, :3] = labels[0][:3]
    told = [replace(forwards[0], revealed=torch.ones_like(tokens, dtype=torch.bool), drawn=tokens)]
    told[0] = replace(told[0], draft_probs=probs)
    told += [replace(each, revealed=torch.zeros_like(each.revealed)) for each in forwards[1:]]
    rewards = made.rewards(batch(), columns, told)
    with torch.no_grad():
        log_p = models()[0].model(TEXTS, use_cache=False).logits.log_softmax(-1)
    for index, (row, column) in enumerate(columns.nonzero().tolist()):
        for draft in range(3 * index, 3 * index + 3):
            accepted, gains = 0, list[float]()
            for place, token in enumerate(tokens[draft].tolist()):
                gains.append(float(log_p[row, column + 1 + place, token] - probs[draft, place].log()))
                if token != int(labels[index][place]):
                    break
                accepted += 1
            reward = accepted + 0.2 * sum(gains) / len(gains) - 0.5 * int(counts[draft])
            assert float(rewards[draft]) == pytest.approx(reward, abs=1e-4)
    assert rewards[1] > rewards[0] + 1
    found = made.advantages(torch.tensor([1.0, 2.0, 6.0, 3.0, 3.0, 3.0]))
    assert found.tolist() == pytest.approx([0.0, 0.0, 3 / 7**0.5, 0.0, 0.0, 0.0], abs=1e-4)
    kept = lesson(replace(settings, least_advantage=-9.0)).advantages(torch.tensor([1.0, 2.0, 6.0]))
    assert kept.tolist() == pytest.approx([-2 / 7**0.5, -1 / 7**0.5, 3 / 7**0.5], abs=1e-4)


@pytest.mark.slow
def test_a_higher_cost_gives_fewer_forwards() -> None:
    found = list[float]()
    for cost in (0.0, 0.05, 1.0):
        own = untrained_reveal_planner(models()[1], seed=1).double().train()
        made = lesson(Reveals(cost=cost, windows=4), own)
        optimizer = torch.optim.Adam(own.parameters(), lr=3e-2)
        for step in range(25):
            loss = made(batch(), torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append(made.evaluation(0, [batch()]).forwards)
    assert found[0] >= found[1] >= found[2] >= 1 and found[0] > found[2] + 1


def test_bad_planners_are_refused_in_a_sentence(tmp_path: Path) -> None:
    wide = RevealPlanner(24)
    with pytest.raises(ValueError, match="hidden states of 24 numbers, and this one's have 16: give the d"):
        parts_of(wide)
    with pytest.raises(ValueError, match="there is no folder .*none: make one with `outpace train dultra "):
        load_predictor(RevealPlanner, tmp_path / "none")
    with torch.no_grad():
        wide.inner.weight[0, 0] = float("nan")
    save_predictor(wide, tmp_path / "nan")
    with pytest.raises(ValueError, match="weights that are not finite numbers: train it again, or restore"):
        load_predictor(RevealPlanner, tmp_path / "nan")
    method = named("dultra")
    with pytest.raises(ValueError, match="no answer has the 10 tokens of a window: give more prompts, a lar"):
        method.check_texts([Example(tuple(range(12)), 3)], method.defaults())
