"""SpecDiff: windows of masks filled in one forward or several, what of them may be claimed, and training."""

from __future__ import annotations

import copy
import math
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.best_first import best_first
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.windows import Window, in_windows, largest, reading_windows, shares
from outpace.models.hf.target import HFTarget
from outpace.models.mask_token import WINDOW_MASK
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.models import recurrent_models, tables, transformers_models
from outpace.proof.mutants.windows import confidence_claimed
from outpace.proof.suite import CAUGHT
from outpace.recipes.diffusion.specdiff import specdiff
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.features import Batch
from outpace.training.lessons.windows import WindowLesson
from outpace.training.methods import named
from outpace.training.packed_windows import window_logits
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection

VOCAB, MASK, END = 12, 12, 13  # the draft model has two tokens more than the target
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 4))


@cache
def models() -> tuple[HFTarget, HFTarget]:
    """A target, and a draft model of four layers with a mask."""
    target, draft = transformers_models(vocab=VOCAB).target, transformers_models(vocab=VOCAB + 2).deep_draft
    assert isinstance(target, HFTarget) and isinstance(draft, HFTarget)
    return target, draft


def parts_of(**options: Any) -> Parts:
    target, draft = models()
    return specdiff.build(target, draft=draft.fitted(VOCAB), **{"mask": MASK, **options})


def drafted(parts: Parts, temperature: float = 0.0) -> list[tuple[Any, int, Tensor, list[int]]]:
    """Of two texts that are decoded together: (step, row, text, nodes of the draft) of every draft."""
    params = [SamplingParams(temperature, max_tokens=16, seed=seed) for seed in range(len(PROMPTS))]
    session = Session(parts, [torch.tensor(each) for each in PROMPTS], params, LazyTargetProbs)
    found = list[tuple[Any, int, Tensor, list[int]]]()
    for step in session.steps():
        for row, nodes in enumerate(step.draft.tree.forest.nodes):
            if len(nodes) > 1:
                text = step.ctx.tokens[row][: step.ctx.committed[row]]
                found.append((step, row, text, list(nodes[1:])))
    assert len(found) >= 10
    return found


def alone(text: Tensor, window: list[int], model: Any = None) -> Tensor:  # (n, V)
    """The draft model's logits in a window behind a text, without a cache. Text attends to text."""
    tokens, size = torch.cat((text, torch.tensor(window))), len(text)
    sees = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    sees[size:] = True
    own = model or models()[1].model
    added = torch.zeros(sees.shape, dtype=own.dtype).masked_fill(~sees, torch.finfo(own.dtype).min)
    with torch.no_grad():
        return own(tokens[None], attention_mask=added[None, None], use_cache=False).logits[0, size:, :VOCAB]


@pytest.mark.parametrize("steps", [1, 2])
def test_distributions_are_those_of_windows_read_alone(steps: int) -> None:
    """Step by step with a KV cache, of which nothing but the text is kept, against forwards over the whole
    text. Later forwards read what the ones before revealed."""
    for step, _, text, nodes in drafted(parts_of(depth=4, steps=steps), temperature=1.0):
        tree, size = step.draft.tree, len(nodes)
        tokens, claim = tree.tokens[nodes].tolist(), tree.claim
        longest = max(tree.forest.depths)
        assert isinstance(claim, Drawn) and step.draft.forwards == (2 if steps == 2 and longest > 2 else 1)
        first = alone(text, [MASK] * size)
        expected = first
        if steps == 2 and size > 2:
            expected = torch.cat((first[:2], alone(text, tokens[:2] + [MASK] * (size - 2))[2:]))
        q = claim.q[[claim.row[node] for node in nodes]]
        assert (q - expected.softmax(-1)).abs().max() < 1e-5


def test_confidence_decides_which_tokens_are_revealed_first() -> None:
    """At temperature 0: the two surest of four tokens, and then the others beside them."""
    for step, _, text, nodes in drafted(parts_of(depth=4, steps=2, reveal="confidence")):
        assert step.draft.tree.claim is None
        size, half = len(nodes), -(-len(nodes) // 2)
        sure, tokens = alone(text, [MASK] * size).softmax(-1).max(-1)
        kept = sure.topk(half).indices.tolist()
        window = [int(tokens[place]) if place in kept else MASK for place in range(size)]
        again = alone(text, window).argmax(-1)
        expected = [window[place] if place in kept else int(again[place]) for place in range(size)]
        assert step.draft.tree.tokens[nodes].tolist() == expected


def test_forwards_share_a_window_evenly() -> None:
    assert shares(10, 1) == (10,) and shares(10, 3) == (3, 3, 4) and shares(2, 5) == (1, 1)
    assert largest(2, (0.1, 0.5, 0.3, 0.5)) == [1, 3]


def error(drafter: Any, depth: int = 2) -> float:
    """The largest error of the output of a table target, whose draft model is a transformers model."""
    small = tables(4)
    cases = [
        Case((0, 1, 2, 0), SamplingParams(1.0, top_k=2, max_tokens=3)),
        Case((2, 2), SamplingParams(0.7, top_k=2, max_tokens=3)),
    ]
    found = enumerate_distributions(
        lambda: Parts(small.target, drafter(), Rejection(), Fixed(depth)), cases, replays=0
    )
    assert found.counts.accepted and found.counts.deepest >= 2
    return largest_error(found, small.logits, cases)


@pytest.mark.slow
def test_only_tokens_that_depend_on_those_before_them_may_be_claimed() -> None:
    """With a two-way model: one forward, and two from left to right, are exact with claims; two in the order
    of confidence are exact without them and biased with them."""
    made = transformers_models(vocab=5).deep_draft
    assert isinstance(made, HFTarget)
    draft, target = made.fitted(4), tables(4).target

    def of_recipe(**options: Any) -> Any:
        return lambda: specdiff.build(target, draft=draft, depth=2, mask=4, **options).drafter

    assert error(of_recipe()) < BOUND
    assert error(of_recipe(steps=2)) < BOUND
    assert error(of_recipe(steps=2, reveal="confidence")) < BOUND
    assert error(lambda: confidence_claimed(draft.in_windows(), mask=4)) > CAUGHT


def test_a_window_gives_the_most_probable_paths_in_one_forward() -> None:
    target, draft = models()
    window = Window(4, MASK, END)
    growth = partial(in_windows, growth=partial(best_first, num_nodes=5), window=window)
    model = reading_windows(draft.fitted(VOCAB), window)
    drafter = DraftModel(model, sampled=False, growth=growth, rereads=True)
    for step, row, text, nodes in drafted(Parts(target, drafter, Match(), Fixed(4))):
        tree, size = step.draft.tree, min(4, step.ctx.max_draft_depth[row])
        probs = alone(text, [MASK] * size + [END])[:size].softmax(-1)
        assert step.draft.forwards == 1 and len(nodes) == 5
        assert int(tree.tokens[nodes[0]]) == int(probs[0].argmax())
        for node in nodes:
            prob = float(probs[tree.forest.depths[node] - 1, tree.tokens[node]])
            assert tree.confidence is not None
            assert math.isclose(prob, math.exp(tree.confidence[node]), rel_tol=1e-4)


def test_packed_windows_are_the_columns_one_at_a_time() -> None:
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [5, 3, 1, 9, 11, 2, 0, 4]])
    columns = torch.zeros(2, 7, dtype=torch.bool)
    columns[0, [1, 4, 6]], columns[1, [0, 3]] = True, True
    windows = torch.tensor([[MASK, 3, MASK], [MASK] * 3, [1, 2, MASK], [MASK, MASK, 5], [MASK, 0, 0]])
    with torch.no_grad():
        found = window_logits(models()[1].model, tokens, columns, windows)[..., :VOCAB]
    for of_window, window, (row, column) in zip(found, windows, columns.nonzero().tolist(), strict=True):
        assert (of_window - alone(tokens[row, : column + 2], window.tolist())).abs().max() < 1e-5


def batch_of(tokens: Tensor) -> Batch:
    learns = torch.ones_like(tokens, dtype=torch.bool)
    with torch.no_grad():
        hidden = models()[0].model.model(tokens, use_cache=False).last_hidden_state
    return Batch(tokens, learns, learns, {-1: hidden})


@pytest.mark.slow
def test_the_lesson_learns_windows() -> None:
    """A model that draws all tokens alike has the loss of one token, however many are masked; lessons teach
    it the tokens of the text."""
    (target, draft), method = models(), named("specdiff")
    made = type(draft.model)(copy.deepcopy(draft.model.config)).float()
    lesson: Any = method.lesson(made, target, method.defaults())
    assert isinstance(lesson, WindowLesson) and lesson.max_depth == 10
    batch = batch_of(torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 3]]))
    with torch.no_grad():
        made.lm_head.weight.zero_()
        noise = torch.Generator().manual_seed(0)
        mean = sum(float(lesson(batch, noise)) for _ in range(100)) / 100
    assert abs(mean / math.log(VOCAB) - 1) < 0.1
    assert lesson.settings.on_policy == 0  # it writes no answers: it drafts in windows only
    made.load_state_dict(draft.model.state_dict())
    optimizer, losses = torch.optim.Adam(made.parameters(), lr=1e-2), list[float]()
    for step in range(40):
        loss = lesson(batch, torch.Generator().manual_seed(step % 5))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_what_no_window_can_be_filled_with_is_refused() -> None:
    target, draft = models()
    with pytest.warns(UserWarning, match=f"no {WINDOW_MASK}, so few of its drafts may be accepted: train it"):
        parts_of(mask=None)
    with pytest.raises(ValueError, match="mask is 14, but the tokens are 0 to 13: give one of these"):
        parts_of(mask=14)
    with pytest.raises(ValueError, match="steps is 0, but a draft needs a forward: use 1 or more"):
        parts_of(steps=0)
    recurrent = recurrent_models()
    with pytest.raises(ValueError, match="reads tokens in order, and masks of a window attend"):
        specdiff.build(recurrent.target, draft=recurrent.drafts[0], mask=0)


@pytest.mark.slow
def test_a_compiled_model_drafts_the_same() -> None:
    pytest.importorskip("openvino")
    target, draft = models()
    model = copy.deepcopy(draft.model).float()
    found = list[list[list[int]]]()
    for compile in (False, True):
        of = HFTarget(model, compile=compile).fitted(VOCAB)
        parts = specdiff.build(target, draft=of, depth=4, steps=2, mask=MASK)
        found.append([step.draft.tree.tokens[nodes].tolist() for step, _, _, nodes in drafted(parts)])
    assert found[0] == found[1]
