"""Byte strings of tokens, for tokenizers of the two families whose tokens concatenate to the text."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from outpace.models.table import TableTarget
from outpace.models.vocabulary import BEGIN, END, CrossVocabularyDraft, Vocabulary

TEXTS = ["def add(a, b):\n    return a", "  two  spaces ", "naïve 漢字 🙂\n\n\tx", " x", "x", "\n"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("prefix", [False, True])
def test_byte_level_tokens_spell_the_text(text: str, prefix: bool, tokenizers: Any) -> None:
    tokenizer = tokenizers.byte_level(prefix=prefix)
    vocabulary = Vocabulary.of(tokenizer, 512)
    tokens = vocabulary.tokenize(text.encode())
    assert vocabulary.to_bytes(tokens) == text.encode()
    if not prefix:
        assert tokens == tokenizer(text)["input_ids"]


def test_half_a_character_is_cut_into_bytes(tokenizers: Any) -> None:
    vocabulary = Vocabulary.of(tokenizers.byte_level(), 512)
    data = "字".encode()
    for part in (data[:1], data[:2], data[1:], b"a" + data[:2] + b"b", b"\xff"):
        assert vocabulary.to_bytes(vocabulary.tokenize(part)) == part


def test_special_and_unused_numbers_spell_nothing(tokenizers: Any) -> None:
    tokenizer = tokenizers.byte_level()
    tokenizer.add_tokens([AddedToken("<|user|>", special=True), AddedToken("\n\n\n", special=False)])
    vocabulary = Vocabulary.of(tokenizer, 512)
    user, lines = (tokenizer.convert_tokens_to_ids(word) for word in ("<|user|>", "\n\n\n"))
    assert vocabulary.pieces[user] is None and vocabulary.specials["<|user|>"] == user
    assert vocabulary.pieces[lines] == b"\n\n\n"
    assert vocabulary.specials[END] == tokenizer.eos_token_id and BEGIN not in vocabulary.specials
    assert vocabulary.pieces[len(tokenizer) :] == (None,) * (512 - len(tokenizer))
    assert vocabulary.begin == ()


@pytest.mark.parametrize("text", TEXTS)
def test_sentence_piece_tokens_spell_the_text_without_the_space_before_it(text: str, tokenizers: Any) -> None:
    vocabulary = Vocabulary.of(tokenizers.sentence_piece(), 512)
    assert vocabulary.to_bytes(vocabulary.tokenize(text.encode())) == text.encode()


def test_a_token_before_every_text_is_known(tokenizers: Any) -> None:
    tokenizer = tokenizers.sentence_piece()
    vocabulary = Vocabulary.of(tokenizer, 512)
    assert vocabulary.begin == (tokenizer.bos_token_id,)
    assert vocabulary.pieces[tokenizer.bos_token_id] is None


def test_a_piece_goes_before_the_byte_that_spells_the_same(tokenizers: Any) -> None:
    tokenizer = tokenizers.sentence_piece()
    vocabulary = Vocabulary.of(tokenizer, 512)
    assert (
        vocabulary.ids[b"a"]
        == tokenizer.convert_tokens_to_ids("a")
        != tokenizer.convert_tokens_to_ids("<0x61>")
    )
    assert vocabulary.ids[b"\xe6"] == tokenizer.convert_tokens_to_ids("<0xE6>")


def test_tokens_that_do_not_add_up_to_text_are_refused(tokenizers: Any) -> None:
    inner = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    inner.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="bert do not spell text piece by piece .its decoder is WordPiece"):
        Vocabulary.of(tokenizers.fast(inner), 3, "bert")
    with pytest.raises(ValueError, match="no fast tokenizer"):
        Vocabulary.of(object(), 3)


def cross_vocabulary(ours: PreTrainedTokenizerFast, theirs: PreTrainedTokenizerFast) -> CrossVocabularyDraft:
    size = len(theirs) + 7  # models have numbers to spare
    return CrossVocabularyDraft(
        TableTarget(size, order=1), Vocabulary.of(theirs, size), Vocabulary.of(ours, len(ours))
    )


def test_matching_tokens_have_the_same_bytes_or_role(tokenizers: Any) -> None:
    ours, theirs = tokenizers.byte_level(400), tokenizers.sentence_piece()
    pair = cross_vocabulary(ours, theirs)
    assert len(set(pair.matching_tokens.values())) == len(pair.matching_tokens)
    for own, match in pair.matching_tokens.items():
        if own != theirs.eos_token_id:
            assert pair.draft_vocabulary.pieces[own] == pair.target_vocabulary.pieces[match] is not None
    assert pair.matching_tokens[theirs.eos_token_id] == ours.eos_token_id
    assert pair.matching_tokens[theirs.convert_tokens_to_ids("<0xE6>")] == pair.target_vocabulary.ids[b"\xe6"]
    own, match = pair.shared
    assert (pair.match_of[own] == match).all() and int((pair.match_of >= 0).sum()) == len(own)


def test_a_token_without_a_matching_token_is_tokenized(tokenizers: Any) -> None:
    pair = cross_vocabulary(tokenizers.byte_level(500), tokenizers.byte_level(280))
    lacking = [
        token
        for token, piece in enumerate(pair.target_vocabulary.pieces)
        if piece and piece not in pair.draft_vocabulary.ids
    ]
    assert lacking
    for token in lacking:
        assert (
            len(pair.translated(token)) > 1
            and pair.draft_vocabulary.to_bytes(pair.translated(token)) == pair.target_vocabulary.pieces[token]
        )


def test_equal_vocabularies_match_token_for_token(tokenizers: Any) -> None:
    pair = cross_vocabulary(tokenizers.byte_level(), tokenizers.byte_level())
    assert pair.matching_tokens == {token: token for token in range(len(tokenizers.byte_level()))}


@pytest.mark.parametrize("text", ["the", " the", "then there", "  a", "é the"])
def test_text_is_split_as_inside_a_text_where_there_is_no_token_for_a_line_feed(text: str) -> None:
    words = [("<unk>", 0.0), ("\u2581", -3.0), ("\u2581the", -4.0), ("the", -4.5), ("re", -5.0), ("n", -6.0)]
    words += [(letter, -8.0) for letter in "abcdeghrtxyzé."]
    tokenizer = Tokenizer(models.Unigram(words, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    vocabulary = Vocabulary.of(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>"), 32)
    tokens = vocabulary.tokenize(text.encode())
    assert vocabulary.to_bytes(tokens) == text.encode()
    if text == " the":
        assert len(tokens) == 1
