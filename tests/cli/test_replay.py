"""Recorded texts replayed on the command line."""

from __future__ import annotations

import json

import pytest


@pytest.mark.slow
def test_what_generate_prints_is_replayed_to_the_same_counts(outpace_, tmp_path):
    prompts = ["for name in names:\n    print(name)\n" * 3, "def add(a, b):\n"]
    options = ("--method", "suffix-decoding", "--max-tokens", 24, "--batch", 1, "--json")
    result = outpace_("generate", *prompts, *options)
    assert result.exit_code == 0, result.output
    (tmp_path / "past.json").write_text(result.stdout)
    live = [each["statistics"] for each in json.loads(result.stdout)["results"]]
    found = json.loads(
        outpace_(
            "replay", "--from", "past.json", "--methods", "suffix-decoding", "--max-tokens", 24, "--json"
        ).stdout
    )
    [row] = found["results"]
    for ours, theirs in (
        ("steps", "num_steps"),
        ("drafted", "num_draft_tokens"),
        ("generated", "num_tokens"),
        ("accepted", "num_accepted_draft_tokens"),
    ):
        assert row[ours] == sum(each[theirs] for each in live)
    assert found["schema"] == "outpace-replay/1" and found["settings"]["texts"] == 2
    assert row["milliseconds_drafting_per_step"] > 0


def test_a_table_has_a_line_for_each_method(outpace_, tiny, tmp_path):
    (tmp_path / "past.jsonl").write_text('{"prompt": "def add(a, b):\\n", "text": "    return a + b\\n"}\n')
    shown = outpace_("replay", "--from", "past.jsonl", "--tokenizer", tiny.target)
    assert shown.exit_code == 0, shown.output
    title, head, _, *rows = shown.stdout.strip().splitlines()
    assert title.startswith("1 texts, ") and "tokens a step" in head
    assert [row.split()[0] for row in rows] == ["prompt-lookup", "suffix-decoding", "sam-decoding"]
    named = outpace_(
        "replay", "--from", "past.jsonl", "--methods", "prompt-lookup:depth=4:allow_shorter=true"
    )
    assert "prompt-lookup:depth=4,allow_shorter=True" in named.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--from", "nowhere.jsonl"), "there is no file"),
        (("--from", "empty.jsonl"), "no texts"),
        (("--from", "past.jsonl", "--methods", "speculative-sampling"), "with a model"),
        (("--from", "past.jsonl", "--methods", "sam-decoding:auxiliary=zoo:draft"), "with a model"),
        (("--from", "past.jsonl", "--methods", "prompt-lookup:horse=1"), "no option"),
    ],
)
def test_invalid_input_gives_one_sentence(outpace_, tmp_path, arguments, words):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "past.jsonl").write_text('{"prompt": "a", "text": "b"}\n')
    result = outpace_("replay", *arguments)
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1 and words in result.stderr
