"""Texts in the tokens of a draft model with another vocabulary: complete, and final tokens do not change."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import NOTHING, Parts
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.model.cross_vocabulary import CrossVocabularyDrafter, RetokenizedText, TranslatedText
from outpace.drafters.model.grow import grow
from outpace.models.table import TableTarget
from outpace.models.vocabulary import END, CrossVocabularyDraft, Vocabulary
from outpace.proof.decode_all import texts
from outpace.verifiers.match import Match

TEXT = (
    "def add(index, b):\n    return  range(index)  # naïve 漢字 🙂\n\n\nfor indexes in add:\n\tprint(10)\n"
    * 3
)


@pytest.fixture(scope="module")
def pairs(tokenizers: Any) -> dict[str, CrossVocabularyDraft]:
    made = {
        "small": tokenizers.byte_level(300),
        "large": tokenizers.byte_level(460),
        "piece": tokenizers.sentence_piece(),
    }
    vocabularies = {name: Vocabulary.of(each, len(each)) for name, each in made.items()}

    def pair(ours: str, theirs: str) -> CrossVocabularyDraft:
        return CrossVocabularyDraft(
            TableTarget(len(made[theirs]), order=1), vocabularies[theirs], vocabularies[ours]
        )

    return {f"{ours} {theirs}": pair(ours, theirs) for ours in made for theirs in made}


PAIRS = [f"{ours} {theirs}" for ours in ("small", "large", "piece") for theirs in ("small", "large", "piece")]


def pieces_of(tokens: list[int], seed: int) -> list[list[int]]:
    pick, found = random.Random(seed), []
    while tokens:
        size = pick.randrange(1, 6)
        found.append(tokens[:size])
        tokens = tokens[size:]
    return found


@pytest.mark.parametrize("kind", [TranslatedText, RetokenizedText])
@pytest.mark.parametrize("name", PAIRS)
def test_whatever_the_target_wrote_is_read(
    pairs: dict[str, CrossVocabularyDraft], name: str, kind: type[TranslatedText]
) -> None:
    pair = pairs[name]
    ours = pair.target_vocabulary.tokenize(TEXT.encode())
    for seed in range(5):
        text, read, final = kind(pair), [], torch.empty(0)
        for part in pieces_of(ours, seed):
            kept = text.extend(part)
            read += part
            assert pair.draft_vocabulary.to_bytes(text.tokens) == pair.target_vocabulary.to_bytes(read)
            assert not kept or torch.equal(text.final[: len(final)], final)
            final = text.final
            assert len(final) and [*final.tolist(), *text.tail] == text.tokens
        assert text.num_translated == len(ours)


@pytest.mark.parametrize("name", ["small large", "large small", "piece large", "large large"])
def test_a_text_is_cut_as_if_at_once(pairs: dict[str, CrossVocabularyDraft], name: str) -> None:
    pair = pairs[name]
    ours = pair.target_vocabulary.tokenize(TEXT.encode())
    for seed in range(5):
        text = RetokenizedText(pair)
        for part in pieces_of(ours, seed):
            final = len(text.tokens) and len(text.final)
            # the first token counts as final: there must be one
            assert text.extend(part) or final <= 1, "the words of this text are short enough to stay final"
        assert text.tokens == pair.draft_vocabulary.tokenize(TEXT.encode())


def test_a_text_that_the_drafts_tokenizer_would_write_otherwise_is_read_as_it_is() -> None:
    words = Vocabulary.longest_match([b" ", b"a", b"b", b"ab", b" a"])
    tidy = replace(words, split=lambda text: words.split(text.replace("  ", " ")))
    text, read = RetokenizedText(CrossVocabularyDraft(TableTarget(5, order=1), tidy, words)), list[int]()
    for token in words.tokenize(b"ab  a b   ab a  b" * 3):
        text.extend([token])
        read.append(token)
        assert words.to_bytes(text.tokens) == words.to_bytes(read)


def test_special_tokens_are_read_by_their_role_or_left_out() -> None:
    ours = Vocabulary.longest_match([b"a", None, None, b"b"], {END: 1, "<|user|>": 2})
    theirs = Vocabulary.longest_match([None, b"b", b"a"], {END: 0})
    pair = CrossVocabularyDraft(TableTarget(3, order=1), theirs, ours)
    for kind in (TranslatedText, RetokenizedText):
        text = kind(pair)
        text.extend([0, 3, 1, 2, 0])
        assert text.tokens == [2, 1, 0, 2]


def test_a_text_of_which_nothing_can_be_read_still_has_a_token() -> None:
    ours = Vocabulary.longest_match([b"a", None], {"<|user|>": 1})
    pair = CrossVocabularyDraft(
        TableTarget(2, order=1), Vocabulary.longest_match([b"a", None], {END: 1}), ours
    )
    for kind in (TranslatedText, RetokenizedText):
        text = kind(pair)
        text.extend([1])
        assert text.final.tolist() == [1]
        assert text.extend([0]) and text.tokens == [1, 0]


class Short(TableTarget):
    """Reads so many tokens and no more."""

    def score(self, tree: Any, slots: Any, cache: Any, want: Any = NOTHING, *, gap: Any = None) -> Any:
        gaps = gap or [()] * len(slots)
        for slot, nodes, missing in zip(slots, tree.forest.nodes, gaps, strict=True):
            deepest = max(tree.forest.depths[node] for node in nodes)
            assert self.max_length and cache.lengths[slot] + len(missing) + deepest + 1 <= self.max_length
        return super().score(tree, slots, cache, want, gap=gap)


@pytest.mark.parametrize("retokenize", [False, True])
def test_a_text_longer_than_the_model_can_read_loses_its_older_half(retokenize: bool) -> None:
    words = Vocabulary.longest_match([b"a", b" b", b"c"])
    model = Short(3, seed=2, order=2)
    model.max_length = 40
    target, pair = TableTarget(3, seed=1, order=2), CrossVocabularyDraft(model, words, words)

    def build() -> Parts:
        def build_tree(ctx: Any, plan: Any, read: Any, tails: Any) -> Any:
            return grow(ctx, plan, read, given=tails)

        def translate_tree(tree: Any, ctx: Any, tails: Any) -> Any:
            ends = [nodes[1 + len(tail) :] for nodes, tail in zip(tree.forest.nodes, tails, strict=True)]
            tokens = torch.tensor(
                [int(tree.tokens[node]) for nodes in ends for node in nodes], dtype=torch.int64
            )
            forest = type(tree.forest).chain(tuple(map(len, ends)))
            return type(tree)(torch.cat([ctx.roots, tokens]), forest)

        drafter = CrossVocabularyDrafter(
            pair, build_tree, translate_tree, nodes=20, max_depth=14, retokenize=retokenize, claims=()
        )
        return Parts(target, drafter, Match(), Fixed(3))

    prompts = [(0, 1, 2) * 9, (2,), (0, 1)]
    sampling = [SamplingParams(temperature=1.0, max_tokens=70 + row, seed=row) for row in range(3)]
    found = texts(build(), prompts, sampling)
    for row, text in enumerate(found):
        assert len(text) == 70 + row
        assert text == texts(build(), prompts[row : row + 1], sampling[row : row + 1])[0]


def test_a_draft_with_nothing_in_common_is_refused() -> None:
    pair = CrossVocabularyDraft(
        TableTarget(1), Vocabulary.longest_match([b"a"]), Vocabulary.longest_match([b"b"])
    )
    with pytest.raises(ValueError, match="no token in common"):
        CrossVocabularyDrafter(
            pair, lambda ctx, plan, read, tails: grow(ctx, plan, read), nodes=1, max_depth=1
        )
