"""SuffixDecoding: longer matches give longer drafts, and repeated text takes few steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.lookup.text_lookup import LookupDrafter
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.models import tables
from outpace.proof.per_row_drafter import row_by_row
from outpace.recipes.training_free.suffix_decoding.recipe import SuffixTreeLookup, suffix_decoding
from outpace.sampling.target_probs import LazyTargetProbs

VOCAB = 120


def counting(step: int = 1) -> TableTarget:
    """A model that counts without end: nothing comes twice in fewer than `VOCAB` tokens."""
    model = TableTarget(VOCAB, order=1)
    model.logits = torch.zeros_like(model.logits)
    for state in range(2 * VOCAB):
        model.logits[state, (state % VOCAB + step) % VOCAB] = 30.0
    return model


def run(parts: Parts, prompts: Sequence[Sequence[int]], tokens: int = 60, **options: Any) -> list[Step]:
    sampling = [SamplingParams(max_tokens=tokens, seed=row, **options) for row in range(len(prompts))]
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs)
    return [step for step in session.steps() if step.scores.logits is not None]


def length(steps: Sequence[Step]) -> float:
    return sum(len(generated) for step in steps for generated in step.generated) / sum(
        len(step.generated) for step in steps
    )


def test_repeated_text_is_generated_in_long_steps() -> None:
    parts = suffix_decoding.build(counting())
    assert length(run(parts, [[7, 3]])) == 1  # nothing to go by
    assert length(run(parts, [[9, 3]])) > 5
    assert length(run(suffix_decoding.build(counting()), [[9, 3]])) == 1  # other parts, other memory


def test_rows_do_not_learn_from_rows_that_have_not_ended() -> None:
    steps = run(suffix_decoding.build(counting()), [[3], [3], [3]])
    assert all(len(step.draft.tree) == 3 for step in steps)


def test_the_prompt_is_drafted_from() -> None:
    steps = run(suffix_decoding.build(counting()), [[*range(5, 60), 5, 6]], 50)
    assert length(steps) > 5
    assert int(steps[0].draft.tree.tokens[1]) == 7  # what followed the last token, which is matched too


def test_a_draft_has_one_token_for_each_that_matched() -> None:
    for matched in range(1, 11):
        prompt = [*range(20, 60), 100, *range(30 - matched, 30)]
        for factor, size in ((1.0, matched), (2.0, 2 * matched), (0.5, matched // 2)):
            parts = suffix_decoding.build(counting(), max_spec_factor=factor, max_spec_offset=0.0, depth=24)
            drafted = len(run(parts, [prompt], 40)[0].draft.tree) - 1
            assert drafted == size


def test_unlikely_tokens_are_not_drafted() -> None:
    # 1 occurs four times: followed twice by 2, once by 3, and once, at the end, by no token
    prompt = [1, 2, 9, 1, 2, 8, 1, 3, 7, 1]
    for min_token_prob, size in ((0.6, 0), (0.4, 1), (0.26, 1)):
        parts = suffix_decoding.build(counting(), max_spec_offset=5.0, min_token_prob=min_token_prob)
        assert len(run(parts, [prompt], 20)[0].draft.tree) - 1 == size


def test_a_tree_holds_what_the_path_leaves_out() -> None:
    prompt = [1, 2, 5, 1, 3, 6, 99, 1]
    shapes = []
    for tree in (False, True):
        parts = suffix_decoding.build(counting(), max_spec_offset=3.0, tree=tree)
        shapes.append(run(parts, [prompt], 20)[0].draft.tree)
    path, branching = shapes
    assert path.forest.is_chain and not branching.forest.is_chain
    below = [int(branching.tokens[node]) for node in branching.forest.children[0]]
    assert sorted(below) == [2, 3]


def test_of_equally_frequent_continuations_that_of_the_request_is_drafted() -> None:
    """The end of the text counts as an occurrence in both trees: otherwise a continuation seen once would
    have probability 1 in the tree of earlier requests and 1/2 in the request's own."""
    parts = suffix_decoding.build(counting(2), max_spec_factor=1.0, max_spec_offset=0.0)
    run(parts, [[1]], 10)  # 3, 5, 7, ...
    first = run(parts, [[5, 6, 99, 5]], 10)[0]
    assert first.draft.tree.tokens.tolist() == [5, 6]


def test_memory_is_bounded_and_the_oldest_is_forgotten() -> None:
    drafter = SuffixTreeLookup(max_cached_tokens=100)
    parts = suffix_decoding.build(counting())
    parts = Parts(parts.target, LookupDrafter(drafter), parts.verifier, parts.controller)
    for start in (0, 40, 80, 5):
        run(parts, [[start]], 40)
        assert drafter.common.num_tokens <= 100
    run(parts, [[1]], 5)
    # of 5 to 45, not of 40 to 80
    assert drafter.common.count([10, 11]) == 1 and drafter.common.count([50, 51]) == 0


@pytest.mark.parametrize("tree", [False, True])
def test_distribution_is_the_targets_with_texts_of_earlier_requests(tree: bool) -> None:
    models = tables()

    def build() -> Parts:
        parts = suffix_decoding.build(models.target, tree=tree, max_spec_offset=2.0)
        texts(
            parts,
            [(0, 1), (2,), (1, 1)],
            [SamplingParams(1.0, max_tokens=12, seed=seed) for seed in range(3)],
        )
        return parts

    cases = [
        Case(prompt, SamplingParams(t, max_tokens=3)) for prompt in ((0, 1, 2), (2,)) for t in (0.0, 0.7, 1.0)
    ]
    found = enumerate_distributions(build, cases)
    assert largest_error(found, models.logits, cases) < BOUND
    first = run(build(), [(0, 1, 2)], 6, temperature=1.0)[0]
    assert len(first.draft.tree) > 1  # the proof is of drafts


@pytest.mark.slow
@pytest.mark.parametrize("score", [0.0, 0.5, 1.0])
def test_distribution_is_the_targets_with_a_fallback(score: float) -> None:
    models = tables()

    def build() -> Parts:
        return suffix_decoding.build(
            models.target, fallback=models.drafts[0], min_score=score, fallback_depth=2
        )

    cases = [
        Case(prompt, SamplingParams(t, max_tokens=3))
        for prompt in ((0, 1, 2, 0, 1), (2,))
        for t in (0.0, 0.7, 1.0)
    ]
    assert largest_error(enumerate_distributions(row_by_row(build), cases), models.logits, cases) < BOUND


def test_a_fallback_takes_the_steps_of_which_little_is_known() -> None:
    """Both together need no more steps than either alone, on a text half of which was in the prompt."""
    target, draft = counting(), counting()
    for state in range(2 * VOCAB):
        if state % VOCAB < 60:
            draft.logits[state] = counting(2).logits[state]  # it knows only the second half
    prompt = [*range(60), 110, 0, 1, 2]
    both = suffix_decoding.build(target, fallback=draft)
    alone = suffix_decoding.build(target, fallback=draft, min_score=1000.0)
    steps = [len(run(parts, [prompt], 105)) for parts in (both, alone, suffix_decoding.build(target))]
    assert steps[0] < min(steps[1:])
