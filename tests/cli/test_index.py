"""Indexes built and shown on the command line."""

from __future__ import annotations

import json

import pytest

from outpace.api.prompts import encode
from outpace.cli.commands.index import binary_size, special_tokens
from outpace.indexes import store
from outpace.indexes.automata.static import Pointer, StaticAutomaton
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.indexes.token_counts import TokenCounts
from outpace.models.checkpoint import load_tokenizer
from outpace.models.skip_set import SkipSet
from outpace.recipes.self_speculation.knn_ssd.skip_set_anchors import SkipSetAnchors
from outpace.recipes.training_free.aded.trigram_table import TrigramTable
from outpace.recipes.training_free.dresd.hidden_states import HiddenStateIndex


@pytest.fixture
def words(tiny):
    return load_tokenizer(str(tiny.target))


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "texts" / "other.json").write_text('{"a": 1}')
    (tmp_path / "texts" / ".hidden").write_bytes(b"\xff")
    (tmp_path / "texts" / ".git").mkdir()
    (tmp_path / "texts" / ".git" / "index").write_bytes(b"\xff")
    lines = [
        {"text": "def add(a, b):\n    return b\n"},
        {"tokens": [5, 6, 7, 8]},
        {"token_ids": [5, 6, 7], "text": "no"},
    ]
    (tmp_path / "past.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    (tmp_path / "results.json").write_text(json.dumps({"results": [{"text": "x", "tokens": [5, 6, 9]}]}))
    return ("--from", "texts", "--from", "past.jsonl", "--from", "results.json")


def test_states_are_read_by_the_model(outpace_, tiny, texts, words):
    result = outpace_(
        "index", "build", *texts, "--kind", "hidden-states", "--tokenizer", tiny.target, "-o", "my.index"
    )
    assert result.exit_code == 0, result.output
    index = store.load(HiddenStateIndex, "my.index", store.fingerprint(words.get_vocab()))
    assert result.stdout.startswith("my.index: hidden-states, ") and len(index.mean) == 32
    assert [5, 6, 7, 8][1:] in index.values[:, :3].tolist()


@pytest.mark.slow
def test_each_source_is_a_domain_of_skip_sets(outpace_, tiny, texts, words):
    command = ("index", "build", *texts, "--kind", "skip-sets", "--tokenizer", tiny.target, "-o", "my.sets")
    result = outpace_(*command, "--trials", 3)
    assert result.exit_code == 0, result.output
    index = store.load(SkipSetAnchors, "my.sets", store.fingerprint(words.get_vocab()))
    assert index.metadata == {"domains": 3, "anchors": 3, "layers": 2}
    generate = ("generate", "def", "--target", tiny.target, "--method", "knn-ssd", "--max-tokens", 4)
    assert outpace_(*generate, "--anchors", "my.sets").exit_code == 0
    missing = outpace_(*generate)
    assert missing.exit_code == 2 and len(missing.stderr.splitlines()) == 1
    assert "knn-ssd needs" in missing.stderr and "outpace index build --kind skip-sets" in missing.stderr


def test_prompts_and_messages_are_prompts_of_skip_sets(outpace_, tiny, tmp_path, words, monkeypatch):
    found = []

    def build(model, domains, trials, on_trial):
        found.extend(list(each) for each in domains)
        return SkipSetAnchors.build([[[1.0, 0.0]]], [SkipSet.of_layers([1])], 2)

    monkeypatch.setattr("outpace.cli.commands.index.index_of_skip_sets", build)
    question, answer = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "no"}
    lines = [{"prompt": "def add", "text": "no"}, {"messages": [question]}, {"messages": [question, answer]}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    command = ("index", "build", "--tokenizer", tiny.target, "-o", "my.sets", "--from", "p.jsonl")
    result = outpace_(*command, "--kind", "skip-sets")
    assert result.exit_code == 0, result.output
    asked = encode(words, [question], len(words))
    assert found == [[encode(words, "def add", len(words)), asked, asked]]
    (tmp_path / "p.jsonl").write_text('{"messages": [{"role": "user"}]}')
    refused = outpace_(*command, "--kind", "skip-sets")
    assert refused.exit_code == 2 and "p.jsonl:1: a chat message has a role and a content" in refused.stderr
    refused = outpace_(*command)  # of another kind
    assert refused.exit_code == 2 and 'p.jsonl:1 has neither "text" nor' in refused.stderr


def test_every_kind_is_built_from_every_source(outpace_, tiny, texts, words):
    mine = store.fingerprint(words.get_vocab())
    for kind, cls in (
        ("suffix-array", SuffixArray),
        ("suffix-automaton", StaticAutomaton),
        ("trigrams", TrigramTable),
        ("token-counts", TokenCounts),
    ):
        result = outpace_(
            "index", "build", *texts, "--kind", kind, "--tokenizer", tiny.target, "-o", "my.index"
        )
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"my.index: {kind}, ")
        index = store.load(cls, "my.index", mine)
        written = words("def add(a, b):\n    return", add_special_tokens=False)["input_ids"]
        if kind == "suffix-array":
            assert index.metadata["documents"] == 6
            assert index.continuations([5, 6, 7], 1)[1].tolist() == [[-1], [8]]
            assert len(index.continuations(written, 1)[1]) == 2
        elif kind == "suffix-automaton":
            assert index.count(index.move(Pointer(), [5, 6])) == 3
            assert index.move(Pointer(), written).length == len(written)
        elif kind == "token-counts":
            counted = dict(zip(index.ids.tolist(), index.counts.tolist(), strict=True))
            assert counted[8] == 1 and counted[5] >= 3 and index.special.tolist() == [words.eos_token_id]
        else:
            assert index.successors(5, 6) == [(7, pytest.approx(2 / 3)), (9, pytest.approx(1 / 3))]


def test_ends_of_turns_and_tool_calls_are_special_tokens(words):
    assert special_tokens(words) == [words.eos_token_id]
    words.add_tokens(["<|turn|>", "<|call|>", "<|other|>"], special_tokens=True)
    turn, call, other = words.convert_tokens_to_ids(["<|turn|>", "<|call|>", "<|other|>"])
    words.chat_template = {"default": "{{ content }}<|turn|>", "tools": "<|call|>{{ tools }}<|turn|>"}
    assert special_tokens(words) == sorted([words.eos_token_id, turn, call])
    words.chat_template = "{{ content }}<|turn|>"
    assert special_tokens(words) == sorted([words.eos_token_id, turn])


def test_show_prints_the_header_of_a_file(outpace_, tiny, texts, words):
    built = outpace_("index", "build", *texts, "--tokenizer", tiny.target, "-o", "my.index", "--json")
    found = json.loads(outpace_("index", "show", "my.index", "--json").stdout)
    seconds = json.loads(built.stdout).pop("seconds")
    assert seconds > 0 and json.loads(built.stdout) == found | {"seconds": seconds}
    assert found["kind"] == "suffix-array" and found["tokenizer"] == store.fingerprint(words.get_vocab())
    table = " ".join(outpace_("index", "show", "my.index").stdout.split())
    for words_ in ("suffix-array", "documents 6", "tokenizer", "made with outpace", " bytes"):
        assert words_ in table
    assert str(found["metadata"]["tokens"]) in table


@pytest.mark.parametrize(
    ("arguments", "words_"),
    [
        (("--from", "nowhere"), "there is no nowhere"),
        (("--from", "empty"), "no files"),
        (("--from", "empty.txt"), "hold no tokens"),
        (("--from", "empty.jsonl", "--kind", "trigrams"), "hold no tokens"),
        (("--from", "good.txt", "-o", "empty"), "empty is a folder"),
        (("--from", "bad.bin"), "bad.bin is not UTF-8 text"),
        (("--from", "bad.jsonl"), "bad.jsonl:2 is not JSON"),
        (("--from", "none.jsonl"), 'none.jsonl:1 has neither "text" nor'),
        (("--from", "large.jsonl"), "tokens beyond"),
        (("--from", "good.txt", "--kind", "horse"), "there is no kind horse"),
        (("--from", "good.txt", "-o", "no/where.index"), "make it first"),
        (("--from", "good.txt", "--tokenizer", "./none"), "none"),
    ],
)
def test_what_cannot_be_built_fails_with_one_sentence(outpace_, tiny, tmp_path, arguments, words_):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "bad.bin").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\nno\n')
    (tmp_path / "none.jsonl").write_text('{"tokens": [1.5]}\n')
    (tmp_path / "large.jsonl").write_text('{"tokens": [1000000]}\n')
    rest = () if "-o" in arguments else ("-o", "my.index")
    rest += () if "--tokenizer" in arguments else ("--tokenizer", tiny.target)
    result = outpace_("index", "build", *arguments, *rest)
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1 and words_ in result.stderr
    assert not (tmp_path / "my.index").exists()


def test_token_ids_are_those_of_the_tokenizer(outpace_, tiny, tmp_path, words):
    command = ("index", "build", "--from", "one.jsonl", "--tokenizer", tiny.target, "-o", "my.index")
    last = max(words.get_vocab().values())
    (tmp_path / "one.jsonl").write_text(json.dumps({"tokens": [0, last]}))
    assert outpace_(*command).exit_code == 0 and store.load(SuffixArray, "my.index").max_token == last
    for beyond in (last + 1, -1):
        (tmp_path / "one.jsonl").write_text(json.dumps({"tokens": [0, beyond]}))
        refused = outpace_(*command)
        assert refused.exit_code == 2 and "one.jsonl:1 has tokens beyond" in refused.stderr


def test_sizes_are_printed_with_their_unit():
    assert [binary_size(each) for each in (0, 1023, 1024, 3 << 19, 5 << 40)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "1.5 MiB",
        "5.0 TiB",
    ]


def test_what_is_no_index_is_not_shown(outpace_, tmp_path):
    (tmp_path / "x.index").write_text("hello")
    result = outpace_("index", "show", "x.index")
    assert result.exit_code == 2 and "is not an index" in result.stderr
    missing = outpace_("index", "show", "none.index")
    assert missing.exit_code == 2 and "there is no index file none.index: build one" in missing.stderr
    assert "Errno" not in missing.stderr


@pytest.mark.slow
def test_an_index_for_another_tokenizer_is_refused(outpace_, tiny, texts):
    """Both tokenizers have the same number of tokens, so only their fingerprints differ."""
    for tokenizer, refused in ((tiny.target, False), (tiny.lookalike, True)):
        for method, option, kind in (
            ("sam-decoding", "index", "suffix-automaton"),
            ("rest", "index", "suffix-array"),
            ("aded", "index", "trigrams"),
            ("dresd", "index", "hidden-states"),
            ("rasd", "index", "suffix-array"),
            ("reader", "index", "suffix-array"),
            ("vocab-trim", "counts", "token-counts"),
        ):
            built = outpace_(
                "index", "build", *texts, "--kind", kind, "--tokenizer", tokenizer, "-o", "my.index"
            )
            assert built.exit_code == 0, built.output
            draft = ("--draft", tiny.draft) if method in ("rasd", "reader", "vocab-trim") else ()
            result = outpace_(
                "generate",
                "def",
                "--target",
                tiny.target,
                "--method",
                method,
                *draft,
                f"--{option}",
                "my.index",
                "--max-tokens",
                4,
            )
            assert result.exit_code == (2 if refused else 0), result.output
            assert ("my.index was made for another tokenizer: build it again" in result.stderr) is refused


def test_bench_and_replay_refuse_it_too(outpace_, tiny, texts, tmp_path):
    (tmp_path / "texts.jsonl").write_text(json.dumps({"prompt": "def", "text": " add(a, b):"}) + "\n")
    (tmp_path / "some.txt").write_text("def\n")
    for tokenizer, code in ((tiny.target, 0), (tiny.lookalike, 2)):
        outpace_("index", "build", *texts, "--tokenizer", tokenizer, "-o", "my.index")
        replay = (
            "replay",
            "--from",
            "texts.jsonl",
            "--methods",
            "rest:index=my.index",
            "--tokenizer",
            tiny.target,
        )
        result = outpace_(*replay)
        assert result.exit_code == code, result.output
        assert ("another tokenizer" in result.stderr) is bool(code)
    result = outpace_(
        "bench", "--target", tiny.target, "--methods", "rest:index=my.index", "--prompts", "some.txt"
    )
    assert result.exit_code == 2 and "another tokenizer" in result.stderr
