"""The models in the package by their names; stubs replace the weights."""

from __future__ import annotations

import json
import shutil

import pytest

import outpace

CARD = {"parameters": 12345, "vocabulary": 320, "held_out_loss": {"code": 3.2}, "device": "a laptop"}


@pytest.fixture
def stocked(tiny, tmp_path, monkeypatch):
    """A zoo with the tiny models."""
    weights = tmp_path / "weights"
    for name, model in (("target", tiny.target), ("draft", tiny.draft), ("draft-2k", tiny.stranger)):
        shutil.copytree(model, weights / name)
        (weights / name / "card.json").write_text(json.dumps(CARD))
    monkeypatch.setattr("outpace.zoo.WEIGHTS", weights)
    monkeypatch.setattr("outpace.models.names.WEIGHTS", weights)
    return weights


def test_list_and_show(outpace_, stocked):
    table = outpace_("zoo", "list").stdout
    assert "zoo:target" in table and "12,345" in table and "3.20" in table and "{" not in table
    found = json.loads(outpace_("zoo", "list", "--json").stdout)["models"]
    assert [each["name"] for each in found] == ["zoo:draft", "zoo:draft-2k", "zoo:target"]
    assert json.loads(outpace_("zoo", "show", "zoo:target").stdout) == {
        **CARD,
        "folder": str(stocked / "target"),
    }
    wrong = outpace_("zoo", "show", "zoo:horse")
    assert wrong.exit_code == 2 and "zoo:draft, zoo:draft-2k, zoo:target" in wrong.stderr


def test_without_a_target_the_pair_of_the_zoo_is_used(outpace_, stocked):
    result = outpace_("generate", "def", "--max-tokens", 6, "--temperature", 0, "--ignore-eos")
    assert result.exit_code == 0, result.output
    assert "speculative-sampling: 6 tokens" in result.stderr and "mean acceptance length" in result.stderr
    result = outpace_("generate", "def", "--method", "specinfer", "--max-tokens", 4, "--ignore-eos")
    assert result.exit_code == 0, result.output
    result = outpace_("generate", "def", "--method", "prompt-lookup", "--max-tokens", 4, "--ignore-eos")
    assert "prompt-lookup: 4 tokens" in result.stderr


@pytest.mark.parametrize("method", ["slem", "tli"])
def test_a_method_that_translates_takes_the_draft_with_tokens_of_its_own(outpace_, stocked, tmp_path, method):
    arguments = (
        "generate",
        "def",
        "--max-tokens",
        6,
        "--temperature",
        0,
        "--ignore-eos",
        "--json",
        "--method",
        method,
    )
    usual, named = outpace_(*arguments), outpace_(*arguments, "--draft", "zoo:draft-2k")
    assert usual.exit_code == named.exit_code == 0, usual.output + named.output

    def drafted(result):
        statistics = json.loads(result.stdout)["results"][0]["statistics"]
        return {name: value for name, value in statistics.items() if name.startswith("num_")}

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def\n")
    assert drafted(usual) == drafted(named) and drafted(usual)["num_draft_tokens"]
    few = ("--num-prompts", 1, "--rounds", 1, "--max-tokens", 4, "--temperature", 0)
    bench = outpace_("bench", "--methods", method, "--prompts", prompts, *few)
    assert bench.exit_code == 0 and "loading draft zoo:draft-2k" in bench.stderr


def test_names_of_the_zoo_work_in_python(stocked):
    assert outpace.zoo.path("zoo:target") == stocked / "target"
    result = outpace.generate("zoo:target", "def", "mcsd", draft="zoo:draft", widths=(2, 1), max_tokens=4)[0]
    assert result.statistics.num_spec_steps
