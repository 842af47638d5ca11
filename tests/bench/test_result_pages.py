"""Results pages, paired comparisons and the front page, from result files written by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import front_page, results
from benchmarks.paired import DirtyCommit, compare, load

PROVENANCE = {
    "argv": ["outpace", "bench"],
    "commit": "abc",
    "versions": {"torch": "2"},
    "device": "4-core CPU",
    "threads": 4,
    "date": "2026-01-01T00:00",
}
AT = {"workload": "code", "temperature": 0.0}


def runs(
    method: str, seconds: list[float], *, repetition: float = 0.0, workload: str = "code"
) -> list[dict[str, Any]]:
    return [
        {
            "method": method,
            "prompts": [f"p{number}"],
            "workload": workload,
            "temperature": 0.0,
            "round": 0,
            "tokens": 10,
            "seconds": each,
            "repetition": repetition,
        }
        for number, each in enumerate(seconds)
    ]


def result(*made: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "schema": "outpace-bench/2",
        "provenance": PROVENANCE,
        "settings": {"seed": 0},
        "runs": [run for each in made for run in each],
        "results": [
            {"method": "fast", "efficiency": {"median": 0.95, "low": 0.92, "high": 0.97}, "steps": 7}
        ],
        **fields,
    }


PLAIN, FAST = runs("plain", [1.0, 2.0, 4.0, 8.0]), runs("fast", [0.5, 1.0, 1.0, 1.0])

REPEATED = (("plain", 1.0, 9.0), ("fast", 0.5, 9.0))


def test_the_ratio_is_the_median_over_pairs_with_an_interval() -> None:
    found = compare(result(PLAIN, FAST), "fast", **AT)
    assert found and found.prompts == 4 and found.tried == 1
    assert found.ratio.median == 3.0  # of 2, 2, 4 and 8
    assert 2.0 <= found.ratio.low <= 3.0 <= found.ratio.high <= 8.0
    assert found.value.median == 10.0
    assert compare(result(PLAIN, FAST), "slow", **AT) is None


def test_acceptance_lengths_are_compared() -> None:
    plain, other = runs("plain", [1.0] * 4), runs("fast", [0.5] * 4)
    given = [[each | {"steps": steps} for each in of] for of, steps in ((plain, 40), (other, 16))]
    found = compare(result(*given), "fast", **AT, measure="acceptance length")
    assert found and found.ratio.median == pytest.approx(2.5)
    assert found.value.median == pytest.approx(plain[0]["tokens"] / 16)


def test_repetitions_in_a_round_are_paired_in_their_order() -> None:
    plain, fast = ([*runs(name, [first]), *runs(name, [second])] for name, first, second in REPEATED)
    found = compare(result(plain, fast), "fast", **AT)
    assert found and found.prompts == 1 and found.ratio.median == pytest.approx(1.5)  # of 2 and 1


def test_names_joined_by_a_bar_stand_for_the_fastest_of_them() -> None:
    slow, other = runs("slow 1", [4.0, 4.0, 4.0, 4.0]), runs("peer", [0.8, 0.8, 0.8, 0.8])
    data = result(PLAIN, FAST, slow, other)
    best = compare(data, "slow*|fast", "peer|slow*|nobody", **AT)
    assert best and (best.method, best.over, best.tried) == ("fast", "peer", 2)
    assert compare(data, "fas|fastest", **AT) is None


def test_two_prompts_have_no_interval_and_repetitive_ones_are_not_selected() -> None:
    two = compare(result(runs("plain", [1.0, 1.0]), runs("fast", [0.5, 0.5])), "fast", **AT)
    assert two and not two.ratio.known
    loops = result(runs("plain", [1.0] * 4, repetition=0.5), runs("fast", [0.1] * 4))
    varied = compare(loops, "fast", **AT)
    assert varied is None
    everything = compare(loops, "fast", **AT, selection="all")
    assert everything and everything.ratio.median == pytest.approx(10.0)


def test_a_peer_is_compared_at_the_setting_with_the_largest_speedup() -> None:
    data = result(PLAIN, FAST, runs("peer x:depth=3", [1.0] * 4), runs("peer x (its defaults)", [0.9] * 4))
    found = compare(data, "peer x*", **AT)
    assert found and (found.method, found.tried) == ("peer x (its defaults)", 2)
    searched = compare(result(PLAIN, runs("peer x, best of 5 settings", [1.0] * 4)), "peer x*", **AT)
    assert searched and searched.tried == 5


def write_page(folder: Path, **fields: Any) -> None:
    target = {"file": "a.json.gz", "method": "fast", "unit": "x", **AT}
    page = {
        "title": "A title",
        "summary": "One sentence.",
        "axis": "speedup",
        "panels": [{"title": "code", "file": "a.json.gz", "methods": ["fast"], **AT}],
        "targets": [
            {"what": "easy", "at_least": 1.5, **target},
            {"what": "hard", "at_least": 9, **target},
            {"what": "near", "at_least": 3, **target},
            {
                "what": "efficiency",
                "file": "a.json.gz",
                "select": {"method": "fast"},
                "value": "efficiency",
                "at_least": 0.9,
            },
            {
                "what": "count",
                "file": "a.json.gz",
                "select": {"method": "fast"},
                "value": "steps",
                "at_most": 9,
            },
            {"what": "absent", "file": "b.json.gz", "method": "fast", **AT},
        ],
        "missed": "What was missed and why.",
        **fields,
    }
    folder.mkdir(exist_ok=True)
    (folder / "page.json").write_text(json.dumps(page))


def write_result(folder: Path, data: Any) -> None:
    measured = folder.parent / "measured.json"
    measured.write_text(json.dumps(data))
    results.publish(measured, folder / "a.json.gz")


def test_a_page_is_a_plot_a_table_a_paragraph_and_links(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    write_page(folder)
    write_result(folder, result(PLAIN, FAST))
    results.write([folder])
    lines = (tmp_path / "engine.md").read_text().splitlines()
    assert lines[0] == "# A title" and lines[4] == "![speedup](engine/plot.svg)"
    assert (folder / "plot.svg").read_text().lstrip().startswith("<?xml")
    verdicts = {
        cells[1]: cells[-2] for line in lines if len(cells := [c.strip() for c in line.split("|")]) > 4
    }
    assert verdicts["easy"] == verdicts["efficiency"] == "met"
    assert (verdicts["hard"], verdicts["near"], verdicts["count"]) == ("missed", "open", "no interval")
    assert any("| absent |" in line and "not measured" in line for line in lines)
    assert "What was missed and why." in lines and lines[-1].startswith(
        "- [a.json.gz](engine/a.json.gz): `outpace bench`"
    )


def test_a_page_shows_ratios_and_rows_of_a_load_test(tmp_path: Path) -> None:
    load_test = {
        "provenance": PROVENANCE,
        "results": [{"contender": "a", "load": "1 stream", "latency_ms": {"p50": 1234.5}, "goodput": None}],
        "ratios": [
            {
                "contender": "a",
                "reference": "b",
                "load": "1 stream",
                "ratios": {"latency": {"median": 0.5, "low": 0.4, "high": 0.6}},
            }
        ],
    }
    select = {"contender": "a", "reference": "b", "load": "1 stream"}
    write_page(
        tmp_path / "load",
        panels=[],
        targets=[
            {"what": "x", "file": "a.json.gz", "select": select, "value": "ratios.latency", "at_most": 0.7},
            {"what": "y", "file": "a.json.gz", "select": select, "value": "ratios.speed.p50", "at_most": 0.7},
        ],
        note="About rounds.",
        tables=[
            {
                "title": "Rows",
                "file": "a.json.gz",
                "columns": [["who", "contender"], ["ms", "latency_ms.p50"], ["goodput", "goodput"]],
            }
        ],
    )
    write_result(tmp_path / "load", load_test)
    text = results.render(tmp_path / "load")
    assert "| x | at most 0.7 | 0.5 (0.4 to 0.6) | met |" in text
    assert "| y | at most 0.7 | not measured |  |" in text
    assert "About rounds." in text and results.NOTE not in text
    assert "## Rows\n\n| who | ms | goodput |" in text and "| a | 1234 | - |" in text


@pytest.mark.parametrize(
    ("limits", "low", "high", "expected"),
    [
        ({"at_least": 1.5}, 1.5, 2.0, "met"),
        ({"at_least": 1.5}, 1.4, 2.0, "open"),
        ({"at_least": 1.5}, 1.0, 1.4, "missed"),
        ({"at_most": 1.5}, 1.0, 1.5, "met"),
        ({"at_most": 1.5}, 1.4, 2.0, "open"),
        ({"at_most": 1.5}, 1.6, 2.0, "missed"),
        ({"at_least": 1.0, "at_most": 1.5}, 1.1, 1.4, "met"),
        ({"at_least": 1.0, "at_most": 1.5}, 1.1, 1.6, "open"),
        ({"at_least": 1.0, "at_most": 1.5}, 1.6, 1.8, "missed"),
        ({}, 1.0, 2.0, ""),
        ({"at_least": 1.5}, None, None, "no interval"),
    ],
)
def test_a_goal_is_met_or_missed_by_the_whole_interval(
    limits: dict[str, float], low: float | None, high: float | None, expected: str
) -> None:
    assert results.verdict(limits, results.MeasuredValue(1.45, low, high))[1] == expected


def test_prompts_whose_text_repeats_itself_count_only_if_a_goal_says_so() -> None:
    loops = [{**run, "prompts": ["loop"]} for run in runs("plain", [1.0], repetition=0.5)]
    files = {"a": result(PLAIN, FAST, loops, [{**run, "prompts": ["loop"]} for run in runs("fast", [0.1])])}
    goal = {"file": "a", "method": "fast", **AT}
    varied, everything = (results.measured(files, goal | more) for more in ({}, {"selection": "all"}))
    assert varied and (varied.value, varied.note) == (3.0, "4 prompts")
    assert everything and (everything.value, everything.note) == (4.0, "5 prompts")


def test_too_few_prompts_give_no_verdict(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    write_page(folder)
    write_result(folder, result(runs("plain", [1.0]), runs("fast", [0.1])))
    assert "| easy | at least 1.5x | too few prompts |  |" in results.render(folder)


def test_results_of_a_dirty_commit_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    write_page(folder)
    write_result(folder, result(PLAIN, provenance={**PROVENANCE, "commit": "abc+"}))
    with pytest.raises(DirtyCommit, match="measured on uncommitted changes"):
        results.render(folder)


def test_a_page_has_at_most_ten_rows(tmp_path: Path) -> None:
    write_page(tmp_path / "engine", targets=[{}] * 11)
    with pytest.raises(ValueError, match="at most 10"):
        results.render(tmp_path / "engine")


@pytest.mark.parametrize("folder", results.pages(), ids=lambda folder: folder.name)
def test_published_pages_are_those_of_the_published_files(folder: Path) -> None:
    assert folder.with_suffix(".md").read_text(encoding="utf-8") == results.render(folder)
    for path in folder.glob("*.json.gz"):
        load(path)  # refuses a dirty commit


def test_rows_that_no_page_shows_are_not_published(tmp_path: Path) -> None:
    rows = [
        {"selection": selection, "temperature": temperature}
        for selection in ("all", "varied")
        for temperature in (0.0, 1.0, None)
    ]
    measured, published = tmp_path / "measured.json", tmp_path / "place" / "file.json.gz"
    for chosen, kept in (("all", rows[:2]), ("varied", [*rows[:2], *rows[3:5]])):
        measured.write_text(json.dumps({"settings": {"selection": chosen}, "results": rows, "runs": [1]}))
        results.publish(measured, published)
        assert json.loads(gzip.decompress(published.read_bytes()))["results"] == kept
    measured.write_text(json.dumps({"settings": {}, "lengths": rows}))  # of another program
    results.publish(measured, published)
    assert json.loads(gzip.decompress(published.read_bytes()))["lengths"] == rows


def test_the_front_page_shows_every_peer_and_at_most_ten_rows() -> None:
    text = front_page.section()
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert 0 < len(rows) <= 10
    for peer in front_page.TRANSFORMERS:
        assert sum(peer.removesuffix("*") in row and "best of" in row for row in rows) == 2
    figure = front_page.chart()
    labels = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert {"OpenVINO GenAI, draft model", "llama.cpp, n-grams", "outpace, draft head"} <= set(labels)
    assert len(figure.axes) == len(front_page.PANELS)


def test_rows_of_the_front_page_show_tokens_per_second_and_the_speedup() -> None:
    spec = front_page.TABLES[0]
    data = load(results.RESULTS / spec["file"])
    found = compare(data, "speculative-sampling", **results.where(spec))
    assert found is not None and found.value.median > 10 * found.ratio.median
    cells = front_page.cells(found, 0.0)
    assert cells[2] == f"{found.value.median:.1f}" and cells[3].startswith(f"{found.ratio.median:.2f} (")


@pytest.mark.slow
def test_a_front_page_that_is_out_of_date_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("<!-- results:begin -->\nold\n<!-- results:end -->\n")
    monkeypatch.setattr(front_page, "README", readme)
    monkeypatch.setattr(front_page, "PLOT", tmp_path / "plot.svg")
    import typer

    app = typer.Typer()
    app.command()(front_page.main)
    assert CliRunner().invoke(app, ["--check"]).exit_code == 1
    assert CliRunner().invoke(app, []).exit_code == 0 and (tmp_path / "plot.svg").is_file()
    assert CliRunner().invoke(app, ["--check"]).exit_code == 0


def test_fields_of_a_row_are_divided_and_rows_are_selected() -> None:
    rows = [
        {"method": "head", "workload": "code", "milliseconds": {"draft": 2.0, "target": 8.0}},
        {"method": "head", "workload": "edit", "milliseconds": {"draft": 3.0, "target": 8.0}},
    ]
    files = {"a.json.gz": result(results=rows)}
    share = {
        "file": "a.json.gz",
        "select": {"workload": "code"},
        "value": "milliseconds.draft",
        "over_value": "milliseconds.target",
    }
    found = results.measured(files, share)
    assert found and found.value == 0.25
    table = results.rows_table(
        files,
        {
            "title": "Times",
            "file": "a.json.gz",
            "select": {"workload": "edit"},
            "columns": [["draft", "milliseconds.draft"]],
        },
    )
    assert table.rows == (("3",),)


def test_compact_files_hold_the_same() -> None:
    data = result(PLAIN, FAST, best={"a": [1.5, None], "b": "x"}, failed=[])
    text = results.compact(data)
    assert json.loads(text) == data
    assert len(text.splitlines()) < 3 * len(data) + len(data["runs"])


def test_equal_measurements_are_published_as_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_result(tmp_path / name, result(PLAIN, FAST))
    files = [tmp_path / name / "a.json.gz" for name in ("one", "two")]
    assert load(files[0]) == result(PLAIN, FAST) and files[0].read_bytes() == files[1].read_bytes()
