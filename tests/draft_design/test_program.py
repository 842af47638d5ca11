"""`benchmarks.draft_design`: arithmetic on given times, structure on real ones, and error messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from benchmarks.draft_design import measurements as measure
from benchmarks.draft_design.__main__ import main
from outpace.cost.cost_curve import CostCurve
from outpace.recipes import RecipeError, get

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(main)
FEW = ("--num-prompts", 2, "--max-tokens", 12, "--lengths", "1,2,3", "--repeats", 1, "--device", "cpu")
GRID = ("--layers", "1,3", "--widths", 16, "--heads", 2)
ACCEPTANCE = (0.8, 0.5, 0.1)
DRAFT = {"tiny": 1e-3, "1 x 16, 2 heads": 0.5e-3, "3 x 16, 2 heads": 8e-3}
TOKEN_OVERHEAD, STEP_OVERHEAD, PLAIN = 0.25e-3, 2e-3, 12e-3


def call(*arguments: object) -> Result:
    return CliRunner().invoke(APP, [*map(str, arguments)])


def results(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    """What the program writes."""
    file = tmp_path / "design.json"
    done = call(*arguments, "--json", file)
    assert done.exit_code == 0, done.output
    return json.loads(file.read_text())


def verify(tokens: float) -> float:
    return 10e-3 + 1e-3 * (tokens - 1)


def step_seconds(draft: float, length: int) -> float:
    return length * (draft + TOKEN_OVERHEAD) + verify(length + 1) + STEP_OVERHEAD


@pytest.fixture
def given_times(monkeypatch: pytest.MonkeyPatch, tiny: Any) -> None:
    """Measurements are replaced by these numbers; steps of length 2 take a tenth longer than the formula."""

    def seconds_of(name: str) -> float:
        return DRAFT["tiny" if name == tiny.draft else name]

    def forward_times(target: Any, candidates: Any, lengths: Any, **given: Any) -> Any:
        curve = CostCurve({length + 1: verify(length + 1) for length in (0, *lengths)})
        return curve, [seconds_of(each.name) for each in candidates]

    def step_times(target: Any, drafts: Mapping[str, Any], prompts: Any, **given: Any) -> Any:
        return {
            name: {
                length: (1.1 if length == 2 else 1) * step_seconds(seconds_of(name), length)
                if name
                else PLAIN
                for length in lengths
            }
            for name, (_, lengths) in drafts.items()
        }

    monkeypatch.setattr(measure, "forward_times", forward_times)
    monkeypatch.setattr(measure, "step_times", step_times)
    decoded = measure.Decoded(ACCEPTANCE, (100, 80, 40))
    monkeypatch.setattr(measure, "acceptance_by_position", lambda *args, **given: decoded)


def test_predictions_follow_from_times_and_acceptance(tiny: Any, given_times: None, tmp_path: Path) -> None:
    data = results(tmp_path, "--target", tiny.target, "--draft", tiny.draft, *FEW, *GRID)
    assert data["schema"] == "outpace-draft-design/1" and data["provenance"]["device"]
    known, shallow, deep = data["results"]
    tokens = {"1": 1.8, "2": 2.2, "3": 2.24}
    speeds = {n: tokens[n] / step_seconds(1e-3, int(n)) for n in tokens}
    assert known["tokens_per_second"] == pytest.approx(speeds)
    best = max(speeds, key=lambda n: speeds[n])
    assert str(known["best"]["length"]) == best and data["best"]["1"]["draft"] == tiny.draft
    assert known["best"]["tokens_per_second"] == pytest.approx(speeds[best])
    assert known["token_overhead_seconds"] == pytest.approx(TOKEN_OVERHEAD)
    assert known["step_overhead_seconds"] == pytest.approx(STEP_OVERHEAD)
    for row, seconds in ((shallow, 0.5e-3), (deep, 8e-3)):
        needed = row["needed"]
        length = needed["length"]
        assert needed["tokens"] == pytest.approx(speeds[best] * step_seconds(seconds, length))
        assert row["best"] is None and row["tokens_per_second"] == {} and row["width"] == 16
    assert shallow["needed"]["rate"] < 0.8 and deep["needed"]["rate"] is None
    assert (shallow["layers"], deep["layers"]) == (1, 3) and shallow["parameters"] < deep["parameters"]
    held_out = {each["draft"]: each for each in data["held_out"]}
    assert set(held_out) == {tiny.draft, "3 x 16, 2 heads"}
    assert all(
        each["length"] == 2 and each["error"] == pytest.approx(1 / 1.1 - 1) for each in held_out.values()
    )


def test_a_table_and_the_best_are_printed(
    tiny: Any, given_times: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = call("--target", tiny.target, "--draft", tiny.draft, *FEW, *GRID)
    assert done.exit_code == 0, done.output
    assert (
        f"Batch 1: best is {tiny.draft} with drafts of length 2" in done.stdout
        and "times plain" in done.stdout
    )
    assert "Held out, batch 1: 3 x 16, 2 heads with drafts of length 2" in done.stdout
    assert "(-9%)" in done.stdout and "cannot" in done.stdout and "needed" in done.stdout


def test_without_a_faster_draft_model_none_is_named(
    tiny: Any, given_times: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DRAFT, "tiny", 50e-3)
    data = results(tmp_path, "--target", tiny.target, "--draft", tiny.draft, *FEW, *GRID)
    assert data["best"]["1"] is None
    needed = data["results"][1]["needed"]  # measured against plain decoding
    assert needed["tokens"] == pytest.approx(step_seconds(0.5e-3, needed["length"]) / PLAIN)


def test_shapes_alone_are_compared_with_plain_decoding(tiny: Any, given_times: None, tmp_path: Path) -> None:
    data = results(tmp_path, "--target", tiny.target, *FEW, *GRID, "--batch", "1,2")
    assert [each["batch"] for each in data["results"]] == [1, 1, 2, 2] and data["acceptance"] == {}
    assert all(each["needed"]["tokens"] > 1 for each in data["results"])


@pytest.mark.slow
def test_real_measurements_have_the_same_structure(tiny: Any, tmp_path: Path) -> None:
    models = ("--target", tiny.target, "--draft", tiny.draft)
    data = results(tmp_path, *models, *FEW, "--layers", 1, "--batch", 2)
    rates = data["acceptance"][tiny.draft]["rates"]
    assert len(rates) == 3 and all(0 <= rate <= 1 for rate in rates) and rates[0] > 0
    assert [each["draft"] for each in data["results"]] == [tiny.draft, "1 x 32, 4 heads"]
    assert all(each["draft_seconds"] > 0 for each in data["results"]) and len(data["held_out"]) == 2
    assert data["settings"]["context"] > 2 and data["plain_tokens_per_second"]["2"] > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--layers", "1,x"), "--layers takes whole numbers"),
        (("--lengths", "0,1"), "--lengths takes numbers of at least 1"),
        (("--widths", "30", "--heads", "4"), "a width of 30 cannot be divided among 4 attention heads"),
        (("--max-tokens", "3"), "need max_tokens of at least 8"),
        (("--max-tokens", "100000"), "every prompt is too long"),
    ],
)
def test_bad_input_is_one_sentence(tiny: Any, arguments: tuple[str, ...], sentence: str) -> None:
    done = call("--target", tiny.target, "--draft", tiny.draft, *FEW, *arguments)
    assert done.exit_code == 2 and sentence in done.stderr.splitlines()[-1]


def test_another_vocabulary_is_refused(tiny: Any) -> None:
    done = call("--target", tiny.target, "--draft", tiny.stranger, *FEW)
    assert done.exit_code == 2 and "vocabularies of 304 and 320 tokens but not the same" in done.stderr


def test_as_a_method_the_program_is_named() -> None:
    with pytest.raises(RecipeError, match=r"run python -m benchmarks\.draft_design"):
        get("draft-design")
