"""`outpace verifiers`: one command compares the rules on the drafts of one model for another."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from outpace.analysis import rule_orderings as orderings
from outpace.analysis.rule_comparison import DRAFTING, RULES
from outpace.bench.measure.bootstrap import mean_interval
from outpace.cli.commands import verifiers

FEW = ("--num-trees", 4, "--num-prompts", 2, "--widths", "2,1", "--threads", 1, "--device", "cpu")


def test_a_table(outpace_, tiny) -> None:
    done = outpace_("verifiers", "--target", tiny.target, "--draft", tiny.draft, *FEW)
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if any(line.startswith(name) for name in DRAFTING)]
    assert len(lines) == sum(len(rule.drafting) for rule in RULES if not rule.chains_only)
    assert "counts the bonus token" in done.stdout
    proven = [line for line in done.stdout.splitlines() if line.endswith("holds")]
    assert len(proven) == 6 and any("k-sequential" in line for line in proven)


def test_everything_as_json(outpace_, tiny) -> None:
    done = outpace_("verifiers", "--target", tiny.target, "--draft", tiny.draft, *FEW, "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["schema"] == "outpace-verifiers/1" and len(data["trees"]) == 4
    assert data["settings"]["widths"] == [2, 1] and data["provenance"]["dtype"]
    rows = {(row["drafting"], row["rule"]): row for row in data["results"]}
    first = rows["without replacement", "rejection"]
    assert first["difference"] == {"mean": 0, "low": None, "high": None}  # too few prompts for an interval
    assert all(1 <= row["length"]["mean"] <= 3 and row["bound"] <= 3 for row in rows.values())
    assert abs(rows["greedy-last", "rejection"]["difference"]["mean"]) < 3


def test_a_broken_ordering_is_printed_and_fails_the_command(
    outpace_, tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orderings, "k_sequential", lambda p, q, count: 0.0)
    done = outpace_("verifiers", "--target", tiny.target, "--draft", tiny.draft, *FEW)
    assert done.exit_code == 1 and [line for line in done.stdout.splitlines() if line.endswith("BROKEN")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--widths", "2,x"), "--widths takes whole numbers"),
        (("--widths", "2,0"), "a width is at least 1"),
        (("--num-trees", "100000"), "every prompt is too long for"),
    ],
)
def test_bad_input_is_one_sentence(outpace_, tiny, arguments: tuple[str, ...], sentence: str) -> None:
    done = outpace_("verifiers", "--target", tiny.target, "--draft", tiny.draft, *FEW, *arguments)
    assert done.exit_code == 2 and sentence in done.stderr.splitlines()[-1]


def test_a_draft_is_needed(outpace_, tiny) -> None:
    done = outpace_("verifiers", "--target", tiny.target)
    assert done.exit_code == 2 and "give --draft" in done.stderr
    done = outpace_("verifiers", "--target", tiny.target, "--draft", tiny.stranger, *FEW)
    assert done.exit_code == 2 and "vocabular" in done.stderr


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(
    outpace_, tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(verifiers, "import_module", missing)
    done = outpace_("verifiers", "--target", tiny.target, "--draft", tiny.draft, *FEW, "--plot", "rules.svg")
    assert done.exit_code == 1
    assert "matplotlib is not installed: pip install 'outpace[report]'" in done.stderr


def test_a_plot(outpace_, tiny, tmp_path: Path) -> None:
    import_module("matplotlib")  # imported here, so that a missing extra is named
    path = tmp_path / "deep" / "rules.svg"
    done = outpace_("verifiers", "--target", tiny.target, "--draft", tiny.draft, *FEW, "--plot", path)
    assert done.exit_code == 0, done.output
    assert "<svg" in path.read_text(encoding="utf-8")


def test_a_mean_of_differences_and_its_interval() -> None:
    same = mean_interval([[0.5] * 4, [0.5] * 2, [0.5]])
    assert (same.mean, same.low, same.high) == (0.5, 0.5, 0.5)
    spread = mean_interval([[0.0], [1.0]] * 50)
    assert spread.mean == 0.5 and 0.38 < spread.low < 0.45 and 0.55 < spread.high < 0.62
    apart = mean_interval([[0.0] * 50, [1.0] * 50, [0.0] * 50])  # trees of one prompt are alike
    assert (apart.low, apart.high) == (0.0, 1.0)
    two = mean_interval([[0.0], [1.0]])
    assert two.mean == 0.5 and two.low != two.low  # no interval with fewer than three prompts
    nothing = mean_interval([])
    assert nothing.mean != nothing.mean
