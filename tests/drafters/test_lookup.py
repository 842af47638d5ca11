"""Drafts made from index candidates, and the state kept for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Shape, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.lookup.request_memory import RequestMemory
from outpace.drafters.lookup.text_lookup import LookupDrafter, chain, within
from outpace.drafters.model.draft_model import DraftModel
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree, candidate_tree
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.suite import ragged
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection

TREE = CandidateTree([5, 6, 7, 8], [-1, 0, -1, 1], [0.5, 0.3, 0.2, 0.1], 3)


def test_branches_hang_below_the_roots_of_their_rows() -> None:
    tree = candidate_tree(torch.tensor([1, 2, 3]), [TREE, NO_CANDIDATES, chain([9, 9], 1)])
    assert tree.tokens.tolist() == [1, 2, 3, 5, 6, 7, 8, 9, 9]
    assert tree.forest.parents == (-1, -1, -1, 0, 3, 0, 4, 2, 7)
    assert tree.claim is None
    assert len(candidate_tree(torch.tensor([1, 2]), [NO_CANDIDATES, NO_CANDIDATES])) == 2


def test_what_is_too_deep_is_cut_with_what_hangs_below_it() -> None:
    assert within(TREE, 4) is TREE
    assert within(TREE, 2) == CandidateTree([5, 6, 7], [-1, 0, -1], [0.5, 0.3, 0.2], 3)
    assert within(TREE, 1) == CandidateTree([5, 7], [-1, -1], [0.5, 0.2], 3)


def test_a_chain_ends_with_the_text() -> None:
    assert chain([4, 5, 6], 2, stop=(5,)).tokens == [4, 5]
    assert chain([4, 5, 6], 2).parents == [-1, 0, 1]
    assert chain([], 2) is NO_CANDIDATES


class Alternating:
    """A lookup that returns the same candidates at every other position, and none at the rest."""

    learns_across_rows = False

    def __init__(self, candidates: CandidateTree) -> None:
        self._candidates = candidates

    def look_up(self, ctx: Context, plan: Plan) -> list[CandidateTree]:
        pairs = zip(ctx.committed, plan.depth, strict=True)
        return [
            within(self._candidates, depth) if depth and size % 2 else NO_CANDIDATES for size, depth in pairs
        ]

    def observe(self, step: Step) -> None: ...
    def release(self, slots: Sequence[int]) -> None: ...


@pytest.mark.parametrize("make", [tables, transformers_models])
@pytest.mark.parametrize("sampled", [True, False])
def test_distribution_is_the_targets_with_a_model_for_the_rest(
    make: Callable[[], Models], sampled: bool
) -> None:
    models = make()

    def build() -> Parts:
        candidates = CandidateTree([1, 0, 2], [-1, 0, -1], [0.5, 0.4, 0.3], 1)
        drafter = LookupDrafter(
            Alternating(candidates),
            DraftModel(models.drafts[0], sampled=sampled),
            1 if sampled else Shape((0, 0)),
        )
        return Parts(models.target, drafter, Rejection() if sampled else Match(), Fixed(2))

    cases = ragged(3)
    assert largest_error(enumerate_distributions(build, cases), models.logits, cases) < BOUND


def test_a_row_is_drafted_by_the_lookup_or_by_the_model() -> None:
    target = TableTarget(8, seed=1)
    drafter = LookupDrafter(Alternating(chain([1, 2, 3], 1)), DraftModel(TableTarget(8, seed=2)), 1)
    prompts = [torch.tensor(prompt) for prompt in ([0, 1], [0, 1, 2], [3])]
    sampling = [SamplingParams(1.0, max_tokens=12, seed=row) for row in range(3)]
    steps = list(
        Session(Parts(target, drafter, Rejection(), Fixed(3)), prompts, sampling, LazyTargetProbs).steps()
    )
    for step in steps:
        depths = zip(step.ctx.committed, step.ctx.max_draft_depth, strict=True)
        for row, (size, max_depth) in enumerate(depths):
            drafted = [int(step.draft.tree.tokens[node]) for node in step.draft.tree.forest.nodes[row][1:]]
            assert drafted == [1, 2, 3][:max_depth] if size % 2 else len(drafted) == min(1, max_depth)


def test_nothing_to_draft_takes_no_forward_of_the_model() -> None:
    drafter = LookupDrafter(Alternating(chain([1], 1)), DraftModel(TableTarget(8, seed=2)), 0)
    steps = Session(
        Parts(TableTarget(8, seed=1), drafter, Rejection(), Fixed(3)),
        [torch.tensor([0])],
        [SamplingParams(max_tokens=9)],
        LazyTargetProbs,
    ).steps()
    assert all(step.draft.forwards == 0 for step in steps)


class Recording:
    """A lookup that finds nothing and records the texts of requests that have ended."""

    learns_across_rows = True

    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        self.requests = RequestMemory[list[int]](list, self.texts.append)

    def look_up(self, ctx: Context, plan: Plan) -> list[CandidateTree]:
        for row, (state, new) in enumerate(self.requests.follow(ctx)):
            state += new.tolist()
            assert state == ctx.tokens[row].tolist()
        return [NO_CANDIDATES] * len(plan.depth)

    def observe(self, step: Step) -> None:
        self.requests.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self.requests.release(slots)


def session(recording: Recording, seed: int = 0, most: int = 6) -> tuple[Session, Iterator[Step]]:
    prompts = [torch.tensor(prompt) for prompt in ([0, 1, 2], [3], [4, 4])]
    sampling = [SamplingParams(1.0, max_tokens=most - row, seed=seed + row) for row in range(3)]
    parts = Parts(TableTarget(8, seed=1), LookupDrafter(recording), Match(), Fixed(3))
    made = Session(parts, prompts, sampling, LazyTargetProbs)
    return made, made.steps()


def test_a_text_is_learnt_once_when_its_request_ends() -> None:
    recording = Recording()
    first, steps = session(recording)
    for _ in steps:
        ended = [first.request(slot).output() for slot in range(3) if slot not in first.rows]
        assert sorted(recording.texts) == sorted(ended)
    second, steps = session(recording, seed=3)
    list(steps)
    texts = [each.request(slot).output() for each in (first, second) for slot in range(3)]
    assert sorted(recording.texts) == sorted(texts)


@pytest.mark.parametrize("left", range(1, 5))
def test_a_batch_that_was_left_in_the_middle_leaves_no_state(left: int) -> None:
    recording = Recording()
    first, steps = session(recording)
    for _ in range(left):
        next(steps)
    texts: Any = [first.request(slot).output() for slot in range(3) if slot not in first.rows]
    second, steps = session(recording, seed=3)
    list(steps)  # `look_up` compares what it follows with the text
    texts += [second.request(slot).output() for slot in range(3)]
    assert sorted(recording.texts) == sorted(texts)  # of those that finished
    assert all(len(second.request(slot).output()) == 6 - slot for slot in range(3))


def test_every_shape_of_up_to_four_nodes_is_cut_at_every_depth() -> None:
    for size in range(1, 5):
        for parents in product(range(-1, size), repeat=size):
            if any(parent >= node for node, parent in enumerate(parents)):
                continue
            branches = CandidateTree(list(range(size)), list(parents), [1.0] * size, 1)
            whole = candidate_tree(torch.tensor([9]), [branches])
            paths = [whole.forest.path(node) for node in range(len(whole))]
            for depth in range(1, 5):
                tree = candidate_tree(torch.tensor([9]), [within(branches, depth)])
                kept = [tree.tokens[tree.forest.path(node)].tolist() for node in range(len(tree))]
                assert kept == [whole.tokens[path].tolist() for path in paths if len(path) <= depth + 1]
