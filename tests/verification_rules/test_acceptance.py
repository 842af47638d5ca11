"""`benchmarks.verification_rules`: one program compares the rules on the drafts of one model for another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from benchmarks.verification_rules import orderings
from benchmarks.verification_rules.__main__ import app
from benchmarks.verification_rules.comparison import DRAFTING, RULES

FEW = ("--num-trees", 4, "--num-prompts", 2, "--widths", "2,1", "--threads", 1)


def call(tiny: Any, *arguments: object) -> Result:
    models = ["--target", tiny.target, "--draft", tiny.draft]
    return CliRunner().invoke(app, ["acceptance", *map(str, [*models, *FEW, *arguments])])


def test_a_table_and_json(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "rules.json"
    done = call(tiny, "--json", file)
    assert done.exit_code == 0, done.output
    lines = [line.strip() for line in done.stdout.splitlines()]
    found = [line for line in lines if any(line.startswith(name) for name in DRAFTING)]
    assert len(found) == sum(len(rule.drafting) for rule in RULES if not rule.chains_only)
    assert "counts the bonus token" in done.stdout
    proven = [line for line in lines if line.endswith("holds")]
    assert len(proven) == 6 and any("k-sequential" in line for line in proven)
    data = json.loads(file.read_text())
    assert data["schema"] == "outpace-verifiers/1" and len(data["trees"]) == 4
    assert data["settings"]["widths"] == [2, 1] and data["provenance"]["dtype"]
    rows = {(row["drafting"], row["rule"]): row for row in data["results"]}
    first = rows["without replacement", "rejection"]
    assert first["difference"] == {"mean": 0, "low": None, "high": None}  # too few prompts for an interval
    assert all(1 <= row["length"]["mean"] <= 3 and row["bound"] <= 3 for row in rows.values())
    assert abs(rows["greedy-last", "rejection"]["difference"]["mean"]) < 3


def test_a_broken_ordering_is_printed_and_fails(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orderings, "k_sequential", lambda p, q, count: 0.0)
    done = call(tiny)
    assert done.exit_code == 1 and "BROKEN" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--widths", "2,x"), "--widths takes whole numbers"),
        (("--widths", "2,0"), "a width is at least 1"),
        (("--num-trees", "100000"), "every prompt is too long for"),
    ],
)
def test_bad_input_is_one_sentence(tiny: Any, arguments: tuple[str, ...], sentence: str) -> None:
    done = call(tiny, *arguments)
    assert done.exit_code == 2 and sentence in done.stderr.splitlines()[-1]


def test_a_draft_is_needed(tiny: Any) -> None:
    done = CliRunner().invoke(app, ["acceptance", "--target", tiny.target])
    assert done.exit_code == 2 and "give --draft" in done.stderr
    done = call(tiny, "--draft", tiny.stranger)
    assert done.exit_code == 2 and "vocabular" in done.stderr


@pytest.mark.slow
def test_the_rules_are_timed(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    done = CliRunner().invoke(app, ["times", "--vocab", "500", "--threads", "1", "--json", str(file)])
    assert done.exit_code == 0, done.output
    data = json.loads(file.read_text())
    assert len(data["milliseconds"]) == 9 and data["settings"]["vocab"] == 500
    assert all(row["verify"] > 0 for row in data["milliseconds"])
