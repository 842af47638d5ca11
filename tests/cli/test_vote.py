"""`outpace vote`: answers, plans and error messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

WORD = ("--answer", r"\w", "--max-tokens", 12, "--seed", 3)


def test_the_answer_is_printed(outpace_, tiny) -> None:
    options = ("vote", "--target", tiny.target, *WORD, "--samples", 3)
    done = outpace_(*options, "def add(a, b):")
    assert done.exit_code == 0, done.output
    assert len(done.stdout.strip()) == 1 and "latency-aware-tts" in done.stderr and "votes" in done.stderr
    found = json.loads(outpace_(*options, "def add(a, b):", "--json").stdout)
    assert found["answer"] == done.stdout.strip() and len(found["branches"]) == found["samples"] == 3
    assert len({each["statistics"]["seed"] for each in found["branches"]}) == 3
    drafted = outpace_(*options, "--draft", tiny.draft, "--depth", 2, "def add(a, b):")
    assert drafted.exit_code == 0 and len(drafted.stdout.strip()) == 1


def test_without_an_answer_it_fails(outpace_, tiny) -> None:
    done = outpace_("vote", "--target", tiny.target, "--answer", "impossible", "--max-tokens", 4, "a")
    assert done.exit_code == 1 and not done.stdout and "no sample gave an answer" in done.stderr


@pytest.mark.slow
def test_a_plan_is_searched_for_and_used(outpace_, tiny, tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text(
        '{"prompt": "def add(a, b):", "answer": "a"}\n{"prompt": "import", "answer": 3}\n'
    )
    limits = ("--deadline", 60, "--max-samples", 2, "--max-depth", 1)
    options = ("vote", "--target", tiny.target, "--draft", tiny.draft, *WORD)
    done = outpace_(*options, "--calibrate", "problems.jsonl", *limits, "-o", "plan.json")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("2 problems, deadline 60 s") and done.stdout.count("best") == 1
    plan = json.loads((tmp_path / "plan.json").read_text())
    tried = {(each["samples"], each["depth"]) for each in plan["tried"]}
    assert {(1, 0), (2, 0), (1, 1)} <= tried and plan["samples"] in (1, 2)
    used = outpace_("vote", "--target", tiny.target, "--method", "@plan.json", *WORD, "import os", "--json")
    assert used.exit_code == 0, used.output
    assert json.loads(used.stdout)["samples"] == plan["samples"]
    as_json = outpace_(*options, "--calibrate", "problems.jsonl", *limits, "--json")
    assert json.loads(as_json.stdout)["schema"] == "outpace-vote-plan/1"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--calibrate", "problems.jsonl"), "give --deadline SECONDS"),
        (("--calibrate", "problems.jsonl", "--deadline", 1, "--depth", 2), "leave out --depth"),
        (("--calibrate", "none.jsonl", "--deadline", 1), "none.jsonl cannot be read"),
        (("--calibrate", "unsolved.jsonl", "--deadline", 1), 'a problem needs an "answer"'),
        (("--output", "plan.json", "a"), "--output is for the plan"),
        (("--deadline", -1, "a"), "use a positive number"),
        (("--answer", "(", "a"), "no regular expression"),
        (("--temperature", 0, "a"), "at temperature 0 all samples are the same"),
        (("--method", "@plan.json", "a"), "samples 0"),
    ],
)
def test_bad_input_is_one_sentence(
    outpace_, tiny, tmp_path: Path, arguments: tuple[object, ...], sentence: str
) -> None:
    (tmp_path / "problems.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    (tmp_path / "unsolved.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "plan.json").write_text('{"method": "autoregressive", "samples": 0}')
    done = outpace_("vote", "--target", tiny.target, *arguments)
    assert done.exit_code == 2 and sentence in done.stderr.splitlines()[-1]
