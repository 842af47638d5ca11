"""Trees as large as pays: sizes from times and acceptance, and texts that do not depend on them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from outpace.controllers.adaptive_tree import FIRST_STEPS, AdaptiveTree
from outpace.core.contracts import PathScores, Step
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle3.head import untrained_eagle3
from outpace.models.heads.head_model import HeadModel
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes import get
from outpace.recipes.base.autoregressive import autoregressive

FORWARD, TOKEN, DRAFT = 1.0, 0.05, 0.1  # seconds: of a forward of the target, of a token in it, of the head


class Clock:
    """Times that are known exactly."""

    def __init__(self, token: float = TOKEN, draft: float = DRAFT, read: float = 0.0) -> None:
        self.token, self.draft, self.read = token, draft, read

    def update(self) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def verifying(self, rows: int, context: int, unread: int, drafted: Any) -> Any:
        return FORWARD + self.token * drafted

    def drafting(self, forwards: Any, tokens: Any, context: int) -> Any:
        return self.draft * forwards + self.read * tokens


def controller(clock: Clock, num_rows: int = 1, num_nodes: int = 10, **options: Any) -> AdaptiveTree:
    made: Any = AdaptiveTree(6, num_nodes, **options)
    made._cost, made._num_drafts = clock, FIRST_STEPS + 1
    made._predict(num_rows, 0)
    return made


def logs(*probabilities: float) -> PathScores:
    return numpy.log(probabilities)


@pytest.mark.parametrize("token", [0.001, 0.05, 0.2, 3.0])
def test_the_nodes_with_the_most_tokens_per_second_are_kept(token: float) -> None:
    rows = ([0.9, 0.5, 0.4, 0.1, 0.02], [0.6, 0.3, 0.01])
    kept = controller(Clock(token), 2).keep([logs(*each) for each in rows], 2)
    every = sorted((each for row in rows for each in row), reverse=True)
    speeds = [
        (2 + sum(every[:count])) / (FORWARD + token * count + 2 * DRAFT) for count in range(len(every) + 1)
    ]
    best = speeds.index(max(speeds))
    assert sum(kept) == best
    assert [sum(each >= every[best - 1] for each in row) if best else 0 for row in rows] == kept


def test_a_level_is_drafted_while_it_pays() -> None:
    candidates = [logs(0.9, 0.05)]
    assert any(controller(Clock(draft=0.05)).extend(candidates, candidates, 1))
    assert not any(controller(Clock(draft=2.0)).extend(candidates, candidates, 1))
    assert not any(controller(Clock(draft=0.05)).extend([logs(0.01)], [logs(0.01)], 1))


def test_levels_of_a_forward_that_is_made_anyway_are_drafted() -> None:
    made: Any = controller(Clock(draft=2.0, read=0.01), levels_per_forward=3)
    candidates = [logs(0.9, 0.8, 0.005)]
    assert [made.extend(candidates, candidates, levels) for levels in (1, 2, 3)] == [[2], [2], [0]]
    assert made._num_computed == 3  # the root and two masks
    cheap: Any = controller(Clock(draft=0.01), levels_per_forward=3)
    assert cheap.extend(candidates, candidates, 3) == [2]
    assert cheap._num_computed == 3 + 1 + 2 * 3  # the root again, and two nodes with two masks each
    # what is verified is the same, and its time does not rise with levels of the same forward
    assert (
        made._best(candidates[0], 1)[2] == made._best(candidates[0], 3)[2] < made._best(candidates[0], 4)[2]
    )


def test_only_paths_that_would_stay_are_extended() -> None:
    candidates, newest = [logs(0.9, 0.85, 0.1, 0.001), logs(0.8)], [logs(0.9, 0.1, 0.001), logs(0.8)]
    assert controller(Clock(token=0.01), 2).keep(candidates, 1) == [3, 1]
    assert controller(Clock(token=0.01), 2).extend(candidates, newest, 1) == [2, 1]
    # the third path adds less than the head's time for it is worth
    assert controller(Clock(token=0.01, draft=0.02, read=0.1), 2).extend(candidates, newest, 1) == [1, 1]


def test_a_head_that_computes_trees_anew_is_asked_for_chains() -> None:
    """With sizes, only a chain is extended without its first nodes, and forwards are padded."""
    made: Any = AdaptiveTree(6, 10, head_sizes=(1, 4, 8))
    made._predict(2, 0)
    assert made._computed([0, 1, 0, 0, 1]).tolist() == [1, 4, 4, 8, 8]  # 1, 1 + 1, 3 + 1, 4 + 1 and 4 + 3
    made._extended([1, 1], 1)
    assert made._computed([1, 0]).tolist() == [1, 4]  # both rows are chains
    made._extended([2, 1], 2)
    assert made._computed([1, 0]).tolist() == [1, 8]  # 1 in the chain, 4 + 1 in the tree
    assert made._num_computed == 4 + 4 + 8


def step(accepted: Sequence[int], scores: PathScores) -> Step:
    """A step of one row with a chain, of which the first nodes are accepted."""
    tree = TokenTree(
        torch.zeros(len(scores) + 1, dtype=torch.int64),
        Forest.chain((len(scores),)),
        torch.tensor([0.0, *scores]),
    )
    found: Any = SimpleNamespace(
        draft=SimpleNamespace(tree=tree, forwards=1, seconds=0.1),
        ctx=SimpleNamespace(slots=(0,), unread=None, committed=(5,)),
        verdict=SimpleNamespace(leaf=[len(accepted)]),
        generated=[[0] * (len(accepted) + 1)],
        seconds={},
    )
    return found


def test_probabilities_follow_what_was_accepted() -> None:
    made = controller(Clock())
    before = made._probabilities(logs(0.5))
    for _ in range(60):
        made.observe(step([], logs(0.5)))
    low = made._probabilities(logs(0.5))
    for _ in range(600):
        made.observe(step([1], logs(0.5)))
    high = made._probabilities(logs(0.5))
    assert before[0] == pytest.approx(0.5) and low[0] < 0.1 and high[0] > 0.8
    assert made._probabilities(logs(0.01))[0] == pytest.approx(0.01)  # another bin


def test_the_first_steps_have_fixed_sizes_that_differ() -> None:
    made: Any = AdaptiveTree(6, 20)
    made._predict(1, 0)
    candidates, sizes, extended = [logs(*[0.9] * 20)], list[int](), list[int]()
    for made._num_drafts in range(1, FIRST_STEPS + 1):
        extended += made.extend(candidates, [candidates[0][:10]], 1)
        sizes += made.keep(candidates, 6)
    assert sizes == [2, 6, 4, 2] and extended == [1, 3, 2, 1]


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="depth is 0 and num_nodes 4"):
        AdaptiveTree(0, 4)
    target: Any = transformers_models(vocab=8).target
    head = HeadModel(untrained_eagle3(target, seed=1))
    with pytest.raises(ValueError, match="use it with tree dynamic"):
        get("eagle3").build(target, head=head, tree="chain", adaptive=True)


@pytest.mark.slow
def test_greedy_texts_are_those_of_plain_decoding_and_trees_differ() -> None:
    target: Any = transformers_models(vocab=8).target
    prompts, params = ([3, 1, 4], [7]), [SamplingParams(max_tokens=30), SamplingParams(max_tokens=24)]
    head = HeadModel(untrained_eagle(target, seed=1))
    found: list[Step] = []
    parts = get("eagle2").build(target, head=head, adaptive=True)
    generated = texts(parts, prompts, params, observe=found.append)
    assert generated == texts(autoregressive.build(target), prompts, params)
    sizes = {len(each.draft.tree) for each in found if each.draft.forwards}
    assert len(sizes) > 2
