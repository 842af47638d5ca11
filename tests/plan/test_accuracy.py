"""`benchmarks.plan_accuracy`: full batches, shares of right predictions, and the structure of its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from benchmarks.plan_accuracy import Cell, Speed, decoding, main, shares, speeds
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.no_draft import NoDraft
from outpace.models.table import TableTarget
from outpace.verifiers.match import Match

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(main)
METHODS = ("--methods", "speculative-sampling,prompt-lookup")
PROMPTS = [torch.tensor([1, 2, 3]), torch.tensor([4, 0]), torch.tensor([5, 5, 1, 0]), torch.tensor([2, 2])]


def cell(predicted: float, measured: float, **fields: Any) -> Cell:
    own = {"workload": "code", "method": "a", "batch": 1, "timed": True, **fields}
    return Cell(
        own["workload"],
        own["method"],
        2,
        own["batch"],
        own["timed"],
        predicted,
        measured,
        measured,
        *([1] * 7),
    )


def test_predictions_are_right_within_a_fifth_of_what_was_measured() -> None:
    found = [
        cell(1.19, 1.0),
        cell(0.79, 1.0),
        cell(2.5, 2.0, method="b", batch=2, timed=False),
        cell(1.8, 2.0, workload="edit"),
    ]
    assert [round(each.error, 2) for each in found] == [0.19, -0.21, 0.25, -0.1]
    rows = {row["cells_of"]: row for row in shares(found)}
    assert rows["all"]["within"]["mean"] == 0.5 and rows["all"]["within_from_same_prompts"]["mean"] == 1
    assert rows["all"]["largest_error"] == 0.25 and rows["all"]["right_side"] == 0.75
    assert rows["a"]["cells"] == 3 and rows["batch 2"]["cells"] == 1
    assert rows["batch sizes that were not timed"]["within"]["mean"] == 0


def test_the_batch_stays_full_and_the_first_step_of_a_turn_is_not_timed() -> None:
    parts = Parts(TableTarget(6, seed=1, order=1), NoDraft(), Match(), Fixed(0))
    params = SamplingParams(max_tokens=20)
    speed = Speed()
    steps = list(decoding(parts, PROMPTS, 2, params, speed))
    # two rows of two texts of 20 tokens each, of which every sixth step is not timed
    assert len(steps) >= 38 and 30 <= speed.steps <= 36 and speed.tokens == 2 * speed.steps
    found = speeds({"one": parts, "other": parts}, PROMPTS, 4, params)
    assert found["one"].steps == found["other"].steps > 0 and found["one"].tokens_per_second > 0


def test_steps_of_one_size_count_by_their_median() -> None:
    speed = Speed(30, {0: [1.0, 1.0, 50.0], 4: [2.0]})
    assert speed.steps == 4 and speed.total == 5.0 and speed.tokens_per_second == 6.0
    assert Speed().tokens_per_second == 0


@pytest.mark.slow
def test_the_program_predicts_and_measures(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [
        "--target",
        tiny.target,
        "--draft",
        tiny.draft,
        "--methods",
        "speculative-sampling,prompt-lookup",
    ]
    few = ["--prompts", "code", "--num-prompts", "2", "--max-tokens", "20", "--batch", "1,2"]
    done = CliRunner().invoke(APP, [*given, *few, "--json", "accuracy.json"])
    assert done.exit_code == 0, done.output
    data = json.loads(Path("accuracy.json").read_text(encoding="utf-8"))
    assert data["schema"] == "outpace-plan-accuracy/1" and data["ratios"][0]["cells_of"] == "all"
    cells = [(each["method"], each["length"], each["batch"]) for each in data["results"]]
    assert {(method, batch) for method, _, batch in cells} == {
        (method, batch) for method in ("speculative-sampling", "prompt-lookup") for batch in (1, 2)
    }
    for each in data["results"]:
        assert each["predicted"] > 0 and each["measured"] > 0 and each["steps"] > 0
        assert each["error"] == pytest.approx(each["predicted"] / each["measured"] - 1)
