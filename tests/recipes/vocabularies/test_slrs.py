"""String-level rejection sampling: the distribution of the next token is summed over all its
tokenizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.models.vocabulary import END, CrossVocabularyDraft, Vocabulary
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.reference import table_logits
from outpace.recipes.vocabularies.slem import slem
from outpace.recipes.vocabularies.slrs import slrs
from outpace.sampling.target_probs import LazyTargetProbs

OURS: list[bytes | None] = [b"a", b"b", b"ab", b"aa"]
PROMPT = (0, 2, 1)


def pair(
    model: TableTarget,
    theirs: Sequence[bytes | None],
    ours: Sequence[bytes | None] = OURS,
    their_end: int | None = None,
    our_end: int | None = None,
) -> CrossVocabularyDraft:
    specials = [{} if end is None else {END: end} for end in (their_end, our_end)]
    return CrossVocabularyDraft(
        model, Vocabulary.longest_match(theirs, specials[0]), Vocabulary.longest_match(ours, specials[1])
    )


def claimed(parts: Parts, depth: int = 1) -> Tensor:  # (V,)
    """The distribution of the first drafted token."""
    session = Session(
        parts,
        [torch.tensor(PROMPT)],
        [SamplingParams(temperature=1.0, max_tokens=depth + 1)],
        LazyTargetProbs,
    )
    claim = next(session.steps()).draft.tree.claim
    assert isinstance(claim, Drawn)
    return claim.q[0]


def written(cross_vocabulary: CrossVocabularyDraft, model: TableTarget, most: int) -> dict[int, float]:
    """The same by writing down every string of so many tokens."""
    read = [token for each in PROMPT for token in cross_vocabulary.translated(each)]
    found: dict[int, float] = {}

    def follow(tokens: list[int], probability: float) -> None:
        ended = next(
            (
                place
                for place, token in enumerate(tokens)
                if not cross_vocabulary.draft_vocabulary.pieces[token]
            ),
            None,
        )
        if len(tokens) < most and ended is None:
            distribution = model.logits[model.state(read + tokens)].softmax(-1)
            for token, share in enumerate(distribution.tolist()):
                follow([*tokens, token], probability * share)
            return
        text = cross_vocabulary.draft_vocabulary.to_bytes(tokens)
        first = (
            cross_vocabulary.target_vocabulary.tokenize(text)[0]
            if text
            else cross_vocabulary.matching_tokens.get(tokens[0])
        )
        if first is not None:
            found[first] = found.get(first, 0.0) + probability

    follow([], 1.0)
    total = sum(found.values())
    return {token: probability / total for token, probability in found.items()}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("theirs", [[b"a", b"b"], [b"b", b"a", b"bb", b"aba"], [b"a", None, b"b", b"ab"]])
def test_the_distribution_is_that_of_the_first_token_of_every_string(
    theirs: list[bytes | None], seed: int
) -> None:
    model = TableTarget(len(theirs), seed=seed, order=2)
    cross_vocabulary = pair(model, theirs, their_end=1 if None in theirs else None)
    if None in theirs:  # a special token without a twin is not drawn where a token begins
        model.logits[:, 1] = -50.0
    distribution = claimed(slrs.build(TableTarget(4, seed=9), draft=cross_vocabulary, min_prob=1e-12))
    assert float(distribution.sum()) == pytest.approx(1, abs=1e-12)
    expected = written(cross_vocabulary, model, 5)
    assert distribution.tolist() == pytest.approx([expected.get(token, 0.0) for token in range(4)], abs=1e-9)


def test_the_end_of_a_text_is_a_token_too() -> None:
    model = TableTarget(3, seed=3, order=2)
    cross_vocabulary = pair(model, [b"a", b"b", None], [b"a", b"b", b"ab", None], 2, 3)
    distribution = claimed(slrs.build(TableTarget(4, seed=9), draft=cross_vocabulary, min_prob=1e-12))
    expected = written(cross_vocabulary, model, 4)
    assert set(expected) == {0, 1, 2, 3}
    assert distribution.tolist() == pytest.approx([expected[token] for token in range(4)], abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_a_token_is_accepted_with_the_overlap_of_the_distributions(seed: int) -> None:
    target, model = TableTarget(4, seed=seed, order=2), TableTarget(2, seed=seed + 20, order=2)
    cross_vocabulary = pair(model, [b"a", b"b"])
    p = target.logits[target.state(PROMPT)].softmax(-1)
    overlap = float(torch.minimum(p, claimed(slrs.build(target, draft=cross_vocabulary))).sum())
    kept = expected_accepted(lambda: slrs.build(target, draft=cross_vocabulary), 1, PROMPT)
    assert kept == pytest.approx(overlap, abs=1e-12)


@pytest.mark.parametrize("depth", [1, 2])
def test_distribution_is_the_targets_when_the_draft_writes_letters(depth: int) -> None:
    target, cross_vocabulary = (
        TableTarget(4, seed=1, order=2),
        pair(TableTarget(2, seed=2, order=2), [b"a", b"b"]),
    )
    cases = [
        Case(PROMPT, SamplingParams(temperature=1.0, max_tokens=3)),
        Case((1,), SamplingParams(temperature=0.7, max_tokens=2)),
    ]
    found = enumerate_distributions(lambda: slrs.build(target, draft=cross_vocabulary, depth=depth), cases)
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND


@pytest.mark.parametrize("seed", range(4))
def test_more_is_accepted_than_by_matching_the_drafts_text(seed: int) -> None:
    target, cross_vocabulary = (
        TableTarget(4, seed=seed, order=2),
        pair(TableTarget(2, seed=seed + 20, order=2), [b"a", b"b"]),
    )
    matched = expected_accepted(lambda: slem.build(target, draft=cross_vocabulary, depth=2), 2, PROMPT)
    assert expected_accepted(lambda: slrs.build(target, draft=cross_vocabulary, depth=2), 2, PROMPT) > matched


def test_with_one_vocabulary_of_letters_the_distribution_is_the_drafts() -> None:
    model = TableTarget(3, seed=4, order=2)
    letters = [b"a", b"b", b"c"]
    distribution = claimed(slrs.build(TableTarget(3, seed=9), draft=pair(model, letters, letters)))
    assert distribution.tolist() == pytest.approx(
        model.logits[model.state(PROMPT)].softmax(-1).tolist(), abs=1e-12
    )


@pytest.mark.parametrize("least", [0.05, 0.3, 1.0])
def test_strings_too_unlikely_to_follow_still_count(least: float) -> None:
    model = TableTarget(2, seed=5, order=2)
    distribution = claimed(
        slrs.build(TableTarget(4, seed=9), draft=pair(model, [b"a", b"b"]), min_prob=least)
    )
    assert float(distribution.sum()) == pytest.approx(1, abs=1e-12)
    if least == 1.0:  # nothing is followed: every string is its first letter
        q = model.logits[model.state([0, 0, 1, 1])].softmax(-1).tolist()
        assert distribution.tolist() == pytest.approx([*q, 0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("options", [{}, {"depth": 3}])
def test_more_tokens_are_drafted_in_the_same_way(options: dict[str, Any]) -> None:
    words = Vocabulary.longest_match([b"a", b"b"])
    target, model = TableTarget(2, seed=1, order=2), TableTarget(2, seed=1, order=2)
    cross_vocabulary = CrossVocabularyDraft(model, words, words)
    depth = options.get("depth", 1)
    found = expected_accepted(lambda: slrs.build(target, draft=cross_vocabulary, **options), depth, (0, 1))
    assert found == pytest.approx(depth, abs=1e-12)


def test_a_likelihood_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="min_prob is 0"):
        slrs.build(TableTarget(4), draft=pair(TableTarget(2), [b"a", b"b"]), min_prob=0)
