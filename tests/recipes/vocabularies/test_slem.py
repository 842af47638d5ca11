"""String-level exact match: drafts of any tokenizer, tokenized again with the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from tokenizers import normalizers

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.models.vocabulary import END, CrossVocabularyDraft, Vocabulary
from outpace.proof.decode_all import texts
from outpace.proof.expected_acceptance import expected_accepted
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.vocabularies.slem import Heuristic, RetokenizedDrafts, slem
from outpace.verifiers.match import Match
from tests.tiers import only

LETTERS = [b"a", b"b", b"c"]


@pytest.mark.parametrize("seed", range(3))
def test_equal_tokenizers_give_matching_of_the_same_drafts(seed: int) -> None:
    target, model = TableTarget(3, seed=seed, order=2), TableTarget(3, seed=seed + 50, order=2)
    words = Vocabulary.longest_match(LETTERS)
    found = expected_accepted(
        lambda: slem.build(target, draft=CrossVocabularyDraft(model, words, words), depth=2), 2
    )
    plain = expected_accepted(lambda: Parts(target, DraftModel(model), Match(), Fixed(2)), 2)
    assert found == pytest.approx(plain, abs=1e-12)


@pytest.mark.parametrize(
    ("theirs", "temperature"),
    only([("piece", 1.0), ("lower case", 0.0)], product(["small", "piece", "lower case"], [0.0, 1.0])),
)
def test_the_text_is_that_of_plain_decoding(tokenizers: Any, theirs: str, temperature: float) -> None:
    ours = tokenizers.byte_level(460)
    other = tokenizers.sentence_piece() if theirs == "piece" else tokenizers.byte_level(290)
    if theirs == "lower case":  # no tokens spell what they were cut from
        for each in (ours, other):
            each.backend_tokenizer.normalizer = normalizers.Sequence(
                [normalizers.NFKC(), normalizers.Lowercase()]
            )
    # random distributions write half characters, bytes that are none, and the end token in the middle
    target, model = (
        TableTarget(len(ours), seed=1, order=1, spread=4),
        TableTarget(len(other), seed=2, order=1, spread=4),
    )
    cross_vocabulary = CrossVocabularyDraft(
        model, Vocabulary.of(other, len(other)), Vocabulary.of(ours, len(ours))
    )
    prompts = [
        ours("naïve 漢字 🙂 def add(")["input_ids"],
        ours("  x")["input_ids"],
        ours("字")["input_ids"][:1],
    ]
    sampling = [SamplingParams(temperature=temperature, max_tokens=60, seed=row) for row in range(3)]
    expected = texts(autoregressive.build(target), prompts, sampling)
    for options in ({}, {"sampled": False}, {"heuristic": False, "depth": 9}):
        assert texts(slem.build(target, draft=cross_vocabulary, **options), prompts, sampling) == expected


def pair(
    ours: list[bytes | None],
    theirs: list[bytes | None],
    our_specials: dict[str, int] | None = None,
    their_specials: dict[str, int] | None = None,
) -> CrossVocabularyDraft:
    words = Vocabulary.longest_match(theirs, their_specials), Vocabulary.longest_match(ours, our_specials)
    return CrossVocabularyDraft(TableTarget(len(theirs), order=1), *words)


def rewritten(cross_vocabulary: CrossVocabularyDraft, before: list[int], drafted: list[int]) -> list[int]:
    return RetokenizedDrafts(cross_vocabulary, sampled=True).to_target_tokens(torch.tensor(before), drafted)


def test_a_draft_is_cut_with_what_stands_before_it() -> None:
    cross_vocabulary = pair(
        [b"re", b"turn", b"return", b" ", b"u", b"rn", b"t"], [b"r", b"e", b"t", b"u", b"n", b" "]
    )
    assert rewritten(cross_vocabulary, [3], [0, 1, 2, 3, 0, 4, 5]) == [2, 3]
    # the target has ended a token within the word, and goes on from there
    assert rewritten(cross_vocabulary, [3, 0], [2, 3, 0, 4, 5]) == [1, 3]


@pytest.mark.parametrize("habit", ["lower case", "no spaces at the ends", "tidied spaces"])
def test_a_draft_goes_on_from_a_text_that_a_tokenizer_would_write_otherwise(
    tokenizers: Any, habit: str
) -> None:
    ours, theirs = tokenizers.byte_level(460), tokenizers.byte_level(290)
    for each in (ours, theirs):
        if habit == "tidied spaces":
            each.clean_up_tokenization_spaces = True
        else:
            kind = normalizers.Lowercase() if habit == "lower case" else normalizers.Strip(right=False)
            each.backend_tokenizer.normalizer = kind
    words = Vocabulary.of(theirs, len(theirs)), Vocabulary.of(ours, len(ours))
    cross_vocabulary = CrossVocabularyDraft(TableTarget(len(theirs), order=1), *words)
    before = [cross_vocabulary.target_vocabulary.ids[bytes([byte])] for byte in b"  K . Pop"]
    drafted = cross_vocabulary.draft_vocabulary.tokenize(b"s , one .")
    assert (
        cross_vocabulary.target_vocabulary.to_bytes(rewritten(cross_vocabulary, before, drafted))
        == b"s , one ."
    )


def test_what_is_cut_anew_does_not_grow_with_the_text() -> None:
    words, sizes = Vocabulary.longest_match([*LETTERS, b"ab", b"bca", b" "]), list[int]()

    def split(text: str) -> Sequence[int]:
        sizes.append(len(text))
        return words.split(text)

    counted = replace(words, split=split)
    target, model = TableTarget(6, seed=1, order=2), TableTarget(6, seed=2, order=2)
    parts = slem.build(target, draft=CrossVocabularyDraft(model, counted, counted), heuristic=False)
    most = []
    for length in (50, 400):
        texts(parts, [(0, 1)], [SamplingParams(temperature=1.0, max_tokens=length, seed=1)])
        most.append(max(sizes))
    assert most[1] <= 1.5 * most[0]


def test_a_draft_that_ends_within_a_character_loses_that_part() -> None:
    data = "é".encode()
    cross_vocabulary = pair([b"a", "é".encode(), data[:1], data[1:]], [b"a", data[:1], data[1:]])
    assert rewritten(cross_vocabulary, [0], [0, 1]) == [0]
    assert rewritten(cross_vocabulary, [0], [0, 1, 2]) == [0, 1]
    # the character was begun by the target
    assert rewritten(cross_vocabulary, [2], [2, 0]) == [3, 0]


def test_a_draft_ends_with_the_text() -> None:
    cross_vocabulary = pair([b"a", None], [None, b"a", None], {END: 1}, {END: 0, "<|user|>": 2})
    assert rewritten(cross_vocabulary, [0], [1, 0, 1]) == [0, 1]
    assert rewritten(cross_vocabulary, [0], [1, 2, 1]) == [0]
    assert rewritten(cross_vocabulary, [0, 1], [0]) == [1]


class Watched(Heuristic):
    """Remembers how long the drafts were."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.sizes: list[int] = []

    def observe(self, step: Step) -> None:
        if step.scores.logits is not None:
            self.sizes.append(len(step.draft.tree) - 1)
        super().observe(step)


@pytest.mark.parametrize(("own", "sizes"), [(True, [3, 5, 7, 9]), (False, [3, 2, 1, 1])])
def test_drafts_grow_while_they_are_fully_accepted(own: bool, sizes: list[int]) -> None:
    words = Vocabulary.longest_match(LETTERS)
    target, model = TableTarget(3, seed=1, order=2), TableTarget(3, seed=1, order=2)
    if not own:
        model.logits = -model.logits
    parts, watched = slem.build(target, draft=CrossVocabularyDraft(model, words, words)), Watched(3)
    texts(replace(parts, controller=watched), [(0,)], [SamplingParams(max_tokens=40)])
    assert watched.sizes[:4] == sizes
