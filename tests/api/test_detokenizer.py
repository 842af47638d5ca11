"""The detokenizer: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from outpace.api.detokenizer import INCOMPLETE, Detokenizer
from outpace.api.stop_strings import special_tokens

WORDS = "naïve 🎉👩‍👩‍👧 日本語のテキスト end"


@pytest.fixture(scope="module")
def words(tiny):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny.target)


def written(detokenizer: Detokenizer, tokens: list[int], size: int = 1) -> list[str]:
    pieces = []
    for start in range(0, len(tokens), size):
        detokenizer.push(tokens[start : start + size])
        pieces.append(detokenizer.piece())
    return [*pieces, detokenizer.finish()]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_characters_split_over_tokens_come_whole(words, size):
    tokens = words(WORDS)["input_ids"]
    assert len(tokens) > len(WORDS)  # the tokenizer knows none of these characters
    pieces = written(Detokenizer(words, words("def")["input_ids"]), tokens, size)
    assert "".join(pieces) == WORDS
    assert not any(INCOMPLETE in piece for piece in pieces)


def test_bytes_that_never_become_a_character_are_written_at_the_end(words):
    tokens = words("ok 🎉")["input_ids"][:-1]
    pieces = written(Detokenizer(words, []), tokens)
    assert "".join(pieces) == words.decode(tokens) and pieces[-1].startswith(INCOMPLETE)


def test_a_prompt_that_ends_inside_a_character_is_gone_on_with(words):
    tokens = words("x🎉y")["input_ids"]
    assert "".join(written(Detokenizer(words, tokens[:3]), tokens[3:])) == "🎉y"


def test_a_long_text_is_that_of_one_decoding(words):
    text = "def add(a, b):\n    return a + b 🎉\n" * 20
    assert "".join(written(Detokenizer(words, words("x")["input_ids"]), words(text)["input_ids"])) == text


def test_special_tokens_are_not_text(words):
    assert "".join(written(Detokenizer(words, []), [*words("add")["input_ids"], words.eos_token_id])) == "add"


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("least", [*range(6), 9])
def test_stop_strings_of_the_first_tokens_are_text(words, size, least):
    """One completed by a token that comes after so many others ends the text, however the tokens arrive."""
    tokens = [*words("a, b, c, d, e")["input_ids"]]
    parts = [words.decode(token) for token in tokens]
    ends = [len("".join(parts[: index + 1])) for index in range(len(parts))]
    text = "".join(parts)
    stops = [
        at
        for at in range(len(text))
        if text[at] == "," and next(n for n, e in enumerate(ends) if e > at) >= least
    ]
    detokenizer = Detokenizer(words, [], stop=[",", "-never-"], min_tokens=least)
    assert "".join(written(detokenizer, tokens, size)) == (text[: stops[0]] if stops else text)
    assert detokenizer.stopped == ("," if stops else None)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_text_ends_before_the_first_stop_string(words, size):
    tokens = words("return a + b\nfor index")["input_ids"]
    detokenizer = Detokenizer(words, [], stop=["index", " + b"])
    pieces = written(detokenizer, tokens, size)
    assert "".join(pieces) == "return a" and detokenizer.stopped == " + b"


@pytest.mark.parametrize("stop", [["turn a", "return a"], ["return a", "turn a"]])
def test_of_stop_strings_that_end_together_the_longest_counts(words, stop):
    detokenizer = Detokenizer(words, [], stop=stop)
    assert "".join(written(detokenizer, words("x return a + b")["input_ids"])) == "x "
    assert detokenizer.stopped == "return a"


def test_all_of_a_stop_string_but_its_last_character_is_held_back(words):
    detokenizer = Detokenizer(words, [], stop=["returns"])
    detokenizer.push(words("return")["input_ids"])
    assert detokenizer.piece() == "" and detokenizer.finish() == "return"


def test_what_a_stop_string_may_begin_with_is_held_back(words):
    detokenizer = Detokenizer(words, [], stop=["turning"])
    detokenizer.push(words("return")["input_ids"])
    assert detokenizer.piece() == "re"
    detokenizer.push(words(" a")["input_ids"])
    assert detokenizer.piece() == "turn a"


def marked(tokenizers) -> tuple[PreTrainedTokenizerFast, dict[int, str]]:
    """A tokenizer with special tokens, one of which has no name of its own, and these tokens."""
    words = tokenizers.byte_level()
    words.add_tokens([AddedToken("<turn>", special=True), AddedToken("<tool>")])
    found = special_tokens(["<turn>\n"], words)
    assert found == {words.eos_token_id: "<end>", words.convert_tokens_to_ids("<turn>"): "<turn>"}
    return words, found


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("stop", "text", "shown", "stopped"),
    [
        (["<turn>\n"], "add<turn>\ndef", "add", "<turn>\n"),
        (["<turn>\n"], "add\n<turn>def<turn>\n", "add\ndef", "<turn>\n"),
        (["add<turn>\n"], "x add<turn>\ndef", "x ", "add<turn>\n"),
        (["<end><turn>"], "x<turn><end>y<end><turn>z", "xy", "<end><turn>"),
        (["d<end>\n<turn>"], "add<end>\n<turn>", "ad", "d<end>\n<turn>"),
        (["y", "d<end>\n"], "add<end>\ny", "ad", "d<end>\n"),
        (["<tool>\n"], "add<turn><tool>\n", "add", "<tool>\n"),  # no special token
        (["d\n", "<end>\nx"], "add<turn>\n", "ad", "d\n"),  # a string that names none
        (["<turn>\n"], "add<tool>\n<turn>", "add<tool>\n", None),
        (["<turn>\n"], "add<turn><end>\n", "add\n", None),
        (["<turn>\nx"], "add<turn>\ndef", "add\ndef", None),
    ],
)
def test_stop_strings_may_name_special_tokens_beside_other_text(tokenizers, stop, text, shown, stopped, size):
    words, special = marked(tokenizers)
    detokenizer = Detokenizer(words, [], stop, 0, special)
    pieces = written(detokenizer, words(text)["input_ids"], size)
    assert "".join(pieces) == detokenizer.text == shown and detokenizer.stopped == stopped


def test_no_special_tokens_are_looked_for_unless_a_stop_string_names_one_beside_other_text(tokenizers):
    words, _ = marked(tokenizers)
    assert not special_tokens(["<turn>", "<tool>\n", "turn", "é"], words)
    assert not special_tokens(["<turn>\n"], None)


def test_only_tokens_up_to_the_end_of_the_stop_string_count(words):
    tokens = words("return a + b")["input_ids"]
    detokenizer = Detokenizer(words, [], stop=["turn"])
    count = detokenizer.push(tokens)
    assert words.decode(tokens[:count]).endswith("turn") or "turn" in words.decode(tokens[:count])
    assert count < len(tokens) and detokenizer.num_tokens == count


def test_a_tokenizer_that_marks_words_keeps_the_space_of_the_first():
    class Marked:
        """Decodes as sentencepiece does: no space at the beginning of a text."""

        def decode(self, tokens, **_):
            return "".join((" " if index else "") + "abcdefgh"[token] for index, token in enumerate(tokens))

    assert "".join(written(Detokenizer(Marked(), [0, 1]), [2, 3])) == " c d"


def ids(words, text: str, *, first: bool = False) -> list[int]:
    return words(text, add_special_tokens=first)["input_ids"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 300])
def test_long_runs_of_byte_tokens_are_characters(tokenizers, size):
    """Byte fallback decodes a run of bytes only if all of them are characters: none may be cut off."""
    words = tokenizers.sentence_piece()
    text = "🎉👩‍👩‍👧日本語" * 4
    tokens, prompt = ids(words, "add " + text + " index"), ids(words, "add")
    assert tokens[: len(prompt)] == prompt and len(tokens) > 100
    pieces = written(Detokenizer(words, prompt), tokens[len(prompt) :], size)
    assert "".join(pieces) == f" {text} index"
    assert not any(INCOMPLETE in piece for piece in pieces)


@pytest.mark.parametrize("text", ["add 🎉🎉", "🎉🎉", "add 日本語日本語日本語", "é🎉"])
def test_a_prompt_that_ends_with_byte_tokens_is_gone_on_with(tokenizers, text):
    words = tokenizers.sentence_piece()
    prompt, tokens = ids(words, text, first=True), ids(words, f"{text} def 🎉 add", first=True)
    assert tokens[: len(prompt)] == prompt
    assert "".join(written(Detokenizer(words, prompt), tokens[len(prompt) :])) == " def 🎉 add"
    for cut in (1, 2):  # the prompt ends within its last character
        rest = "".join(written(Detokenizer(words, prompt[:-cut]), tokens[len(prompt) - cut :]))
        assert rest == f"{text[-1]} def 🎉 add"


@pytest.mark.parametrize("kind", ["sentence_piece", "byte_level"])
def test_the_text_does_not_depend_on_the_division_into_steps(tokenizers, kind):
    """Also where bytes are no characters, and after many of them."""
    words = getattr(tokenizers, kind)()
    good, part = ids(words, "日"), ids(words, "🎉")[-2:]
    tokens = [
        *ids(words, "add"),
        *good,
        *part,
        *ids(words, " def"),
        *good,
        part[0],
        *good * 9,
        part[1],
        *good,
    ]
    found = {"".join(written(Detokenizer(words, good), tokens, size)) for size in range(1, len(tokens) + 1)}
    assert len(found) == 1
    assert found.pop().replace(INCOMPLETE, "").replace(" ", "") == "add日def日" + 9 * "日" + "日"


def test_special_tokens_one_after_another_are_not_decoded_again_and_again(words):
    tokens = [words.eos_token_id] * 200
    asked = []

    class Counted:
        def decode(self, tokens, **options):
            asked.append(len(tokens))
            return words.decode(tokens, **options)

    assert "".join(written(Detokenizer(Counted(), words("def")["input_ids"]), tokens)) == ""
    assert len(asked) < 2 * len(tokens)


class Bytes:
    """Decodes bytes together, as tokenizers with byte fallback do: all of them are replaced if any is not
    part of a character."""

    def decode(self, tokens, **_):
        found, run = "", b""
        for token in [*tokens, "x"]:
            if isinstance(token, int):
                run += bytes([token])
                continue
            try:
                found += run.decode()
            except UnicodeDecodeError:
                found += INCOMPLETE * len(run)
            found, run = found + token, b""
        return found[:-1]


@pytest.mark.parametrize("size", [1, 3, 5, 100])
def test_a_long_run_of_bytes_that_become_characters_comes_whole(size):
    text = "🎉語é" * 40
    pieces = written(Detokenizer(Bytes(), ["a"]), [*text.encode(), "b"], size)
    assert "".join(pieces) == text + "b"
    assert not any(INCOMPLETE in piece for piece in pieces)


@pytest.mark.parametrize("prompt", ["🎉🎉", "x語🎉", "a bc 🎉"])
def test_what_follows_characters_of_single_bytes_is_not_preceded_by_them(prompt):
    pieces = written(Detokenizer(Bytes(), list(prompt.encode())), ["b", *"é".encode(), "c"])
    assert "".join(pieces) == "béc"


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("names", "options", "text"),
    [
        (["<turn>"], {}, "a<turn>b<turn>"),
        (["<turn>", "<end>"], {}, "a<turn>b<turn><end>"),
        (["<turn>", "<end>"], {"ends": "<end>"}, "a<turn>b<turn>"),
        (["<turn>"], {"skip_special_tokens": False}, "a<turn>b<turn><end>"),
        ([], {"skip_special_tokens": False, "ends": "<end>"}, "a<turn>b<turn>"),
        (["<turn>"], {"stop": ["b<turn>"]}, "a<turn>"),
        (["<turn>"], {"stop": ["b<turn>"], "include_stop": True}, "a<turn>b<turn>"),
        ([], {"stop": ["b<turn>"], "include_stop": True}, "ab"),
        ([], {"stop": ["b<turn>"], "include_stop": True, "skip_special_tokens": False}, "a<turn>b<turn>"),
    ],
)
def test_special_tokens_are_in_the_text_if_wanted(tokenizers, names, options, text, size):
    words, special = marked(tokenizers)
    shown = {token: name for token, name in special.items() if name in names}
    ends = {token for token, name in special.items() if name == options.get("ends")}
    options = {"special_tokens": special, "shown": shown} | options | {"ends": ends}
    detokenizer = Detokenizer(words, [], **options)
    pieces = written(detokenizer, words("a<turn>b<turn><end>")["input_ids"], size)
    assert "".join(pieces) == detokenizer.text == text
