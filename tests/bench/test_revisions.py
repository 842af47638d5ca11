"""The comparison of a decoding step with another revision of outpace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import revisions
from benchmarks.revisions import Case, Ratio, compare, to_table
from outpace.bench.measure.bootstrap import Interval

CASE = Case("autoregressive", compile=False)


class FakeWorker:
    """A worker that answers at once: `milliseconds` per step, and these tokens for each prompt."""

    def __init__(self, milliseconds: float, tokens: dict[str, list[int]]) -> None:
        self.milliseconds, self.tokens, self.prompts = milliseconds, tokens, list[str]()

    def decode(self, case: Case, prompt: str, max_tokens: int, threads: int) -> dict[str, Any]:
        self.prompts.append(prompt)
        return {"tokens": self.tokens[prompt], "milliseconds": self.milliseconds}


def test_pairs_with_different_tokens_are_left_out() -> None:
    ours = FakeWorker(2.2, {"a": [1], "b": [2], "c": [3], "d": [4]})
    theirs = FakeWorker(2.0, {"a": [1], "b": [2], "c": [3], "d": [5]})
    found = compare(CASE, ours, theirs, prompts="abcd", rounds=3, max_tokens=8, threads=1)
    assert found.pairs == 9
    assert (found.milliseconds, found.other_milliseconds) == (2.2, 2.0)
    assert found.ratio.median == pytest.approx(1.1) and not found.reached
    assert ours.prompts == theirs.prompts == list("abcd" * 4)


def test_a_goal_is_reached_only_with_both_the_median_and_the_upper_end() -> None:
    def ratio(median: float, high: float) -> Ratio:
        return Ratio(str(CASE), 30, 2.0, 2.0, Interval(median, 0.9, high))

    found = [ratio(1.02, 1.05), ratio(1.02, 1.07), ratio(1.04, 1.05)]
    assert [each.reached for each in found] == [True, False, False]
    assert [row[-1] for row in to_table(found, "v1").rows] == ["reached", "missed", "missed"]


def test_an_unknown_revision_is_refused() -> None:
    result = CliRunner().invoke(app(), ["no-such-revision"])
    assert result.exit_code == 2 and "no-such-revision cannot be checked out" in result.output


@pytest.mark.programs
@pytest.mark.slow
def test_two_processes_decode_in_turns(tmp_path: Path) -> None:
    file = tmp_path / "ratios.json"
    arguments = ["HEAD", "--rounds", "1", "--num-prompts", "3", "--max-tokens", "8", "--no-compiled"]
    result = CliRunner().invoke(app(), [*arguments, "--threads", "1", "--json", str(file)])
    assert result.exit_code == 0, result.output
    ratios = json.loads(file.read_text(encoding="utf-8"))["ratios"]
    methods = ("autoregressive", "speculative-sampling", "eagle3")
    assert [each["case"] for each in ratios] == [
        f"{method}, eager, {rows}" for method in methods for rows in ("1 row", "8 rows")
    ]
    assert all(each["pairs"] == 3 and 0.1 < each["ratio"]["median"] < 10 for each in ratios)


def app() -> Any:
    import typer

    program = typer.Typer()
    program.command()(revisions.main)
    return program
