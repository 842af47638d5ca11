"""OmniDraft: pairs of the draft's tokens are merged, and the distributions of merged and unmerged tokens stay
true."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from outpace.core.claim import Drawn
from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.models.vocabulary import CrossVocabularyDraft, Vocabulary
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.per_row_drafter import row_by_row
from outpace.proof.reference import table_logits
from outpace.recipes.vocabularies.omnidraft.pair_merging import TokenPairs
from outpace.recipes.vocabularies.omnidraft.recipe import omnidraft
from outpace.recipes.vocabularies.tli import tli
from outpace.sampling.target_probs import LazyTargetProbs

OURS: list[bytes | None] = [b"a", b"b", b"ab", b"ba"]


def pair(
    model: TableTarget, theirs: Sequence[bytes | None], ours: Sequence[bytes | None] = OURS
) -> CrossVocabularyDraft:
    return CrossVocabularyDraft(model, Vocabulary.longest_match(theirs), Vocabulary.longest_match(ours))


def drafts(
    target: TableTarget, cross_vocabulary: CrossVocabularyDraft, count: int, **options: Any
) -> list[Step]:
    """First steps after a prompt, under different seeds."""
    found = []
    for seed in range(count):
        parts = omnidraft.build(target, draft=cross_vocabulary, **options)
        sampling = SamplingParams(temperature=1.0, max_tokens=options.get("depth", 5) + 1, seed=seed)
        session = Session(parts, [torch.tensor([0, 2, 3])], [sampling], LazyTargetProbs)
        found.append(next(session.steps()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("breadth", [1, 4])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ([b"a", b"b"], OURS),
        ([b"b", b"a", b"bb"], OURS),
        ([b"x", b"y", b"a"], [b"xy", b"a", b"ay"]),  # the target has no tokens x and y
    ],
)
def test_longer_drafts_are_exact(theirs: list[bytes | None], ours: list[bytes | None], breadth: int) -> None:
    target, model = TableTarget(len(ours), seed=1, order=2), TableTarget(len(theirs), seed=2, order=2)
    cross_vocabulary = pair(model, theirs, ours)
    cases = [
        Case((0, 1), SamplingParams(temperature=1.0, max_tokens=4)),
        Case((2, 0), SamplingParams(max_tokens=6)),
    ]
    found = enumerate_distributions(
        lambda: omnidraft.build(target, draft=cross_vocabulary, depth=3, pair_starts=breadth, pairs="all"),
        cases,
        replays=5,
    )
    assert largest_error(found, table_logits(target.logits, target.state), cases) < 1e-12


def test_distributions_sum_to_one_and_merged_tokens_are_drafted() -> None:
    cross_vocabulary = pair(TableTarget(3, seed=5, order=2), [b"b", b"a", b"bb"])
    merged = 0
    for step in drafts(TableTarget(4, seed=3, order=2), cross_vocabulary, 40, depth=4):
        tree = step.draft.tree
        assert isinstance(tree.claim, Drawn)
        torch.testing.assert_close(tree.claim.q.sum(-1), torch.ones(len(tree.claim.q), dtype=torch.float64))
        tokens = tree.tokens.tolist()
        merged += sum(token in (2, 3) for token in tokens[1:])
        assert all(
            float(tree.claim.q[row, tokens[node]]) > 0 for node, row in enumerate(tree.claim.row) if row >= 0
        )
    assert merged > 10


def test_without_merging_it_is_token_level_intersection() -> None:
    target, cross_vocabulary = (
        TableTarget(4, seed=3, order=2),
        pair(TableTarget(3, seed=5, order=2), [b"b", b"a", b"bb"]),
    )
    one = expected_accepted(
        lambda: omnidraft.build(target, draft=cross_vocabulary, depth=2, pair_starts=0), 2, (0, 2)
    )
    other = expected_accepted(lambda: tli.build(target, draft=cross_vocabulary, depth=2), 2, (0, 2))
    assert one == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_merging_accepts_more_where_the_target_has_one_token_for_a_pair(seed: int) -> None:
    target, model = TableTarget(4, seed=seed, order=1), TableTarget(2, seed=seed + 9, order=1)
    target.logits[:, 2] += 2.0
    model.logits[:, :] = torch.tensor([[0.0, 0.0], [-1.0, 1.0]]).repeat(2, 1)[:4]
    cross_vocabulary = pair(model, [b"a", b"b"])
    merged = expected_accepted(lambda: omnidraft.build(target, draft=cross_vocabulary, depth=2), 2, (0, 2, 3))
    assert merged > expected_accepted(
        lambda: tli.build(target, draft=cross_vocabulary, depth=2), 2, (0, 2, 3)
    )


@pytest.mark.parametrize("seed", range(3))
def test_more_learned_pairs_accept_more(seed: int) -> None:
    target, cross_vocabulary = (
        TableTarget(4, seed=seed, order=1),
        pair(TableTarget(2, seed=seed + 9, order=1), [b"a", b"b"]),
    )
    target.logits[:, 2] += 2.0
    # texts of as many tokens and letters that end alike: ba a ba without ab, a ab ba with it
    found = [
        expected_accepted(
            lambda o=which: omnidraft.build(target, draft=cross_vocabulary, depth=2, pairs=o), 2, prompt
        )
        for prompt in ((3, 0, 3), (0, 2, 3))
        for which in ("request", "all")
    ]
    before, everything, after, same = found
    assert (
        before < after
        and after == pytest.approx(same, abs=1e-12)
        and everything == pytest.approx(same, abs=1e-12)
    )


def test_only_pairs_of_learned_tokens_are_merged() -> None:
    pairs = TokenPairs(pair(TableTarget(2), [b"a", b"b"], [b"a", b"b", b"ab", b"ba", b"aba", b"ab"]))
    assert pairs.after == {} and not pairs.firsts.any()
    pairs.learn([0, 4, 5])  # shared, spelt by three, and another token's double
    assert pairs.after == {}
    pairs.learn([2, 2])
    assert pairs.after == {0: {1: 2}} and pairs.firsts.tolist() == [True, False]
    pairs.learn([3])
    assert pairs.after == {0: {1: 2}, 1: {0: 3}}


def test_pairs_of_earlier_requests_are_merged_and_the_output_stays_exact() -> None:
    target, cross_vocabulary = (
        TableTarget(4, seed=1, order=1),
        pair(TableTarget(2, seed=10, order=1), [b"a", b"b"]),
    )
    target.logits[:, 2] += 2.0

    def build(pairs: str, *earlier: int) -> Parts:
        parts = omnidraft.build(target, draft=cross_vocabulary, depth=2, pairs=pairs)
        if earlier:
            texts(parts, [earlier], [SamplingParams(temperature=0.0, max_tokens=2)])
        return parts

    unseen = (3, 0, 3)  # a text without ab
    found = [
        expected_accepted(partial(build, *given), 2, unseen)
        for given in (("seen",), ("request", 1, 2, 3), ("seen", 1, 2, 3), ("all",))
    ]
    assert found[0] == found[1] < found[2] and found[2] == pytest.approx(found[3], abs=1e-12)

    cases = [Case(unseen, SamplingParams(temperature=1.0, max_tokens=3))]
    history = partial(texts, prompts=[(1, 2, 3)], sampling=[SamplingParams(temperature=0.0, max_tokens=2)])
    exact = enumerate_distributions(row_by_row(partial(build, "seen"), history), cases, replays=5)
    assert largest_error(exact, table_logits(target.logits, target.state), cases) < 1e-12
    assert exact.counts.accepted


def test_pairs_of_other_requests_can_be_left_out() -> None:
    target, cross_vocabulary = (
        TableTarget(4, seed=3, order=2),
        pair(TableTarget(2, seed=5, order=2), [b"a", b"b"]),
    )
    sampling = [SamplingParams(temperature=1.0, max_tokens=20 + row, seed=row) for row in range(3)]
    prompts = [(0, 1, 1), (2, 3, 0), (1,)]
    together = texts(omnidraft.build(target, draft=cross_vocabulary, pairs="request"), prompts, sampling)
    for row in range(3):
        parts = omnidraft.build(target, draft=cross_vocabulary, pairs="request")
        assert texts(parts, prompts[row : row + 1], sampling[row : row + 1])[0] == together[row]


@pytest.mark.slow
def test_single_precision_distributions_stay_distributions() -> None:
    target, model = TableTarget(4, seed=3, order=2), TableTarget(3, seed=5, order=2)
    target.logits, model.logits = target.logits.float(), (9 * model.logits).float()
    cross_vocabulary = pair(model, [b"b", b"a", b"bb"])
    sampling = [SamplingParams(temperature=1.0, max_tokens=60, seed=seed) for seed in range(32)]
    found = texts(omnidraft.build(target, draft=cross_vocabulary, pairs="all"), [(0, 1)] * 32, sampling)
    assert all(len(text) == 60 for text in found)
