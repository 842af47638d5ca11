"""The programs that measure drafters which learn, batches with a long tail, and trees on recurrent layers."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
import typer

from benchmarks import learning_stream, makespan, plot, recurrent_trees, results
from benchmarks.learning_stream import Answer, Window, latencies, recovered_after, stream, windows
from benchmarks.makespan import lengths


def answer(accepted: int, seconds: float = 1.0) -> Answer:
    return Answer("", seconds, 4, 20, accepted)


def test_windows_count_drafts_of_successive_requests() -> None:
    found = windows("it", [answer(10), answer(12), answer(0)], 2)
    assert found == [Window("it", 0, 2, 0.55, 3.75), Window("it", 2, 1, 0.0, 1.0)]
    assert windows("it", [Answer("", 1.0, 0, 0, 0)], 2) == [Window("it", 0, 1, None, None)]


def test_recovery_is_counted_from_the_change() -> None:
    def rated(*rates: float | None) -> list[Window]:
        return [Window("it", 10 * place, 10, rate, None) for place, rate in enumerate(rates)]

    assert recovered_after(rated(0.9, 0.8, 0.3, 0.5, 0.6, 0.6, 0.6), 20) == 20
    assert recovered_after(rated(0.9, 0.8, 0.6, 0.6, 0.6, 0.6), 20) == 0
    assert recovered_after(rated(0.9, 0.3, None, 0.6), 10) is None


def test_latencies_are_of_both_halves() -> None:
    found = latencies("it", [answer(0, each / 1000) for each in (*range(1, 22), *([50] * 10))], 21)
    assert [(each.half, each.p50) for each in found] == [("before", 11.0), ("after", 50.0)]
    assert found[0].p95 == pytest.approx(20.0)


@pytest.mark.slow
def test_the_stream_has_both_domains_and_repeats() -> None:
    found = stream([["code"], ["arithmetic"]], 8)
    assert found == stream([["code"], ["arithmetic"]], 8)
    assert [type(each) for each in found] == [str] * 4 + [list] * 4


def test_lengths_have_a_long_tail() -> None:
    found = lengths(2000, 12, 400, 0)
    assert min(found) == 12 and 300 < max(found) <= 400
    assert median(found) < 30 and sum(found) / len(found) > 1.5 * median(found)
    assert found == lengths(2000, 12, 400, 0) != lengths(2000, 12, 400, 1)


def test_a_page_draws_lines_of_the_rows_that_have_values(tmp_path: Path) -> None:
    rows = [{"name": "a", "begin": 0, "rate": 0.5}, {"name": "a", "begin": 9, "rate": 0.7}]
    rows += [{"name": "b", "begin": 0, "rate": None}, {"name": "c", "begin": 0, "rate": 0.1}]
    spec = {"file": "it", "by": "name", "names": ["a", "b"], "x": "begin", "y": "rate"}
    found = results.series({"it": {"results": rows}}, spec)
    assert found == {"a": [(0, 0.5), (9, 0.7)]}
    plot.save(plot.line_chart(found, ("requests", "acceptance"), mark=4.5), tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "requests" in text and "acceptance" in text and ">a<" in text


def test_other_contenders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="there is no contender other"):
        learning_stream.main(tmp_path / "it.json", contenders="plain;other")


@pytest.mark.slow
@pytest.mark.programs
def test_servers_answer_the_stream_and_nothing_differs(tmp_path: Path) -> None:
    learning_stream.main(
        tmp_path / "it.json",
        contenders="plain;online-sd",
        number=16,
        window=4,
        max_tokens=16,
        more="--requests 2 --positions 16",
        number_of_threads=1,
    )
    found = json.loads((tmp_path / "it.json").read_text(encoding="utf-8"))
    assert [each["contender"] for each in found["servers"]] == ["plain", "online-sd"]
    assert not any(each["differing"] for each in found["servers"])
    assert len(found["results"]) == 8 and len(found["milliseconds"]) == 4
    assert all(each["acceptance"] > 0 for each in found["results"][4:])


@pytest.mark.slow
@pytest.mark.programs
def test_batches_are_timed_with_and_without_drafts(tmp_path: Path) -> None:
    makespan.main(tmp_path / "it.json", rows=6, longest=40, most_rows=3, rounds=3, compile=False, number=1)
    found = json.loads((tmp_path / "it.json").read_text(encoding="utf-8"))
    drafted = {each["contender"]: each["drafted_steps"] for each in found["results"]}
    steps = {each["contender"]: each["steps"] for each in found["results"]}
    assert drafted["off"] == 0 < drafted["tlt"] < steps["tlt"] and drafted["always"] == steps["always"]
    assert len(found["ratios"]) == 3


@pytest.mark.slow
@pytest.mark.programs
def test_trees_and_chains_are_timed_on_recurrent_layers(tmp_path: Path) -> None:
    recurrent_trees.main(
        tmp_path / "it.json", small=64, large=128, num_layers=4, steps=3, prompts=3, max_tokens=6, number=1
    )
    found = json.loads((tmp_path / "it.json").read_text(encoding="utf-8"))
    names = {(each["family"], each["name"]) for each in found["results"]}
    assert len(names) == 10 and ("Qwen3.5", recurrent_trees.BY_LEVEL) in names
    assert all(each["tokens_per_step"] >= 1 and each["milliseconds"] > 0 for each in found["results"])
    assert {each["over"] for each in found["ratios"]} == {
        recurrent_trees.CHAIN,
        "plain",
        recurrent_trees.BY_LEVEL,
        recurrent_trees.BY_CODE,
    }
