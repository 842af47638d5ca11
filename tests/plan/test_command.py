"""`outpace plan` from configurations and with models: numbers, messages, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outpace.plan.acceptance import read_acceptance

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
DRAFT = {**CONFIG, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
FEW = ("--num-prompts", 2, "--max-tokens", 12, "--longest", 3, "--batch", "1,2", "--device", "cpu")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `outpace plan` in a folder with target.json and draft.json."""
    from outpace.cli.app import app

    monkeypatch.chdir(tmp_path)
    Path("target.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    Path("draft.json").write_text(json.dumps(DRAFT | {"num_attention_heads": 32}), encoding="utf-8")
    return lambda *arguments: CliRunner().invoke(app, ["plan", *map(str, arguments)])


def planned(found: Any) -> dict[str, Any]:
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


ON_H100 = ("--target", "target.json", "--hardware", "h100-sxm", "--context", 1000)


def test_a_configuration_is_enough(plan: Callable[..., Any]) -> None:
    given = ("--draft", "draft.json", "--acceptance", "0.8", "--batch", "1,64")
    data = planned(plan(*ON_H100, *given, "--json"))
    assert data["schema"] == "outpace-plan/1" and data["measured"] == []
    assert data["memory"]["weights_bytes"] == pytest.approx(8.03e9 * 2, rel=1e-3)
    assert data["memory"]["kv_cache_bytes_per_row"] == 131072 * 1000
    first, last = data["results"]
    seconds = 8.03e9 * 2 / (0.8 * 3.35e12)  # of the weights; the embedding is not read
    assert first["plain_seconds"] == pytest.approx(seconds, rel=0.2)
    assert 1.5 < first["speedup"] < 3 and first["speedup"] > last["speedup"]
    tokens = (1 - 0.8 ** (first["best"]["length"] + 1)) / 0.2
    assert first["best"]["tokens_per_step"] == pytest.approx(tokens)
    assert any("989 TFLOPS" in each and "https://" in each for each in data["assumed"])
    compressed = planned(plan(*ON_H100, *given, "--weights", "int4", "--json"))
    assert compressed["memory"]["weights_bytes"] < 0.4 * data["memory"]["weights_bytes"]
    assert compressed["results"][0]["plain_seconds"] < 0.5 * first["plain_seconds"]


def test_heads_that_are_not_trained_and_lookups_are_planned_for(plan: Callable[..., Any]) -> None:
    replayed = {
        "results": [
            {
                "method": "suffix-decoding",
                "drafted_by_position": [0.5, 0.4],
                "accepted_by_position": [0.4],
                "drafted_per_step": 0.9,
            }
        ]
    }
    Path("replay.json").write_text(json.dumps(replayed), encoding="utf-8")
    rates = ("--acceptance", "head=0.75/0.1", "--acceptance", "replay.json")
    data = planned(plan(*ON_H100, "--head", "eagle", *rates, "--batch", "1", "--json"))
    head, lookup = data["results"]
    assert (head["method"], lookup["method"]) == ("draft head eagle", "suffix-decoding")
    # a layer and a projection of twice the width, at least
    assert data["memory"]["drafters_weights_bytes"] > 2 * (218e6 + 2 * 4096**2)
    assert head["tree_parents"] and head["best"]["tokens_per_step"] > 2
    assert lookup["best"]["tokens_per_step"] == 1.4 and lookup["acceptance_needed"] is None
    assert data["recommendation"].startswith("use draft head eagle with trees of")


@pytest.mark.slow
def test_models_are_measured(plan: Callable[..., Any], tiny: Any, tmp_path: Path) -> None:
    models = ("--target", tiny.target, "--draft", tiny.draft, "--lookup")
    found = plan(*models, *FEW, "--html", "plan.html", "--json")
    data = planned(found)
    assert [each["batch"] for each in data["results"]] == [1, 1, 2, 2]
    assert {each["method"] for each in data["results"]} == {"speculative-sampling", "prompt-lookup"}
    accepted = data["acceptance"]["speculative-sampling"]["accepted"]
    assert len(accepted) == 3 and 0 < accepted[0] <= 1 and sorted(accepted, reverse=True) == accepted
    assert all(each["speedup"] > 0 and each["plain_seconds"] > 0 for each in data["results"])
    assert data["settings"]["context"] >= 4 and data["provenance"]["device"]
    page = Path("plan.html").read_text(encoding="utf-8")
    for each in data["results"]:
        assert f"{each['speedup']:.2f} (" in page and f"<td>{each['tokens_per_second']:.1f}</td>" in page


def test_measured_acceptance_on_a_device_of_the_table(plan: Callable[..., Any], tiny: Any) -> None:
    models = ("--target", tiny.target, "--draft", tiny.draft, "--hardware", "l4", "--dtype", "bfloat16")
    found = plan(*models, *FEW)
    assert found.exit_code == 0, found.output
    assert "Measured: acceptance, on " in found.stdout and "300 GB/s" in found.stdout
    assert "Recommendation: " in found.stdout.splitlines()[-1] + found.stdout.splitlines()[-2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--hardware", "h300"), "the table has no hardware 'h300' but a100-40gb"),
        (("--bandwidth", "100"), "give both --bandwidth and --flops"),
        (("--batch", "1,x"), "--batch takes whole numbers"),
        (("--target", "target.json"), "a configuration alone can be planned for, but not measured"),
        ((*ON_H100, "--acceptance", "0.7"), "could be of several: give --draft, --head or --lookup"),
        ((*ON_H100, "--lookup", "--acceptance", "x"), "--acceptance takes a rate such as 0.7"),
        ((*ON_H100, "--lookup", "--acceptance", "1.7"), "acceptance rates are from 0 to 1"),
        ((*ON_H100, "--lookup", "--acceptance", "none.json"), "none.json cannot be read: No such file"),
        ((*ON_H100, "--head", "eagel", "--acceptance", "0.7"), "there is no draft head 'eagel'"),
        ((*ON_H100, "--lookup", "--acceptance", "0.5", "--dtype", "int3"), "'int3' is no format"),
        ((*ON_H100, "--lookup", "--draft", "x", "--acceptance", "draft=0.7"), "of the lookup is missing"),
        (("--methods", "auto"), "auto chooses what it drafts while it runs"),
        (("--methods", "medusa-typical"), "changes the distribution of the output"),
        (("--head", "eagle"), "there is no trained draft head 'eagle' to measure"),
    ],
)
def test_bad_input_is_one_sentence(
    plan: Callable[..., Any], arguments: tuple[object, ...], sentence: str
) -> None:
    found = plan(*arguments)
    assert found.exit_code == 2 and sentence in found.stderr.splitlines()[-1], found.output


def test_acceptance_is_read_by_position_and_by_rank() -> None:
    [same] = read_acceptance("0.5", 3)
    assert list(same.drafts.accepted) == [0.5, 0.25, 0.125] and same.ranks == []
    [positions] = read_acceptance("0.8,0.5", 8)
    assert list(positions.drafts.accepted) == [0.8, 0.4]
    [ranks] = read_acceptance("0.6/0.2", 2)
    assert ranks.ranks == [0.6, 0.2] and list(ranks.drafts.accepted) == [0.6, 0.36]
