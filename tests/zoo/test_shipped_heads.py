"""The package's draft heads are opened by their methods, match their cards, and draft what is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import outpace
from outpace import zoo
from outpace.cli.commands.zoo import head_row
from outpace.models.heads.fingerprint import target_fingerprint
from outpace.models.names import USUAL_HEADS, usual_head

USUAL = USUAL_HEADS["zoo:target"]
METHODS = [method for method in USUAL if usual_head("zoo:target", method)]
DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "zoo.md"
MOST_BYTES = 7_500_000  # of one head
PROMPT = "class Queue:\n    def __init__(self):\n        self.items = []\n\n    def"


@pytest.fixture(scope="module")
def target():
    return outpace.load("zoo:target", dtype="float32")


def test_every_head_in_the_package_is_the_usual_one_of_its_method() -> None:
    assert zoo.head_names() and {f"zoo:{name}" for name in zoo.head_names()} <= set(USUAL.values())
    assert {"eagle", "eagle2"} <= set(METHODS)


def test_the_documentation_has_the_figures_of_the_cards() -> None:
    rows = [line for line in DOCUMENTATION.read_text(encoding="utf-8").splitlines() if "| `zoo:" in line]
    for name in zoo.head_names():
        _, parameters, length, acceptance, _, steps = head_row(f"zoo:{name}", zoo.card(name))
        row = next(line for line in rows if f"`zoo:{name}`" in line)
        assert f"| {parameters} | {steps} | {length} | {acceptance} |" in row
        usual = [method for method, heads in USUAL.items() if f"zoo:{name}" in heads.split(",")]
        assert all(f"[{method}](methods/{method}.md)" in row for method in usual)


@pytest.mark.parametrize("name", zoo.head_names())
def test_a_head_matches_its_card(name: str, target) -> None:
    folder, card = zoo.path(name), zoo.card(f"zoo:{name}")
    weights = load_file(folder / "model.safetensors")
    assert (folder / "model.safetensors").stat().st_size <= MOST_BYTES
    assert all(torch.isfinite(each).all() for each in weights.values() if each.is_floating_point())
    assert all(each.dtype == torch.bfloat16 for each in weights.values() if each.is_floating_point())
    assert card["target"] == target_fingerprint(target.target)
    assert card["evaluations"][-1]["step"] == card["config"]["steps"]
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert card["parameters"] > 0 and "# " + name in page and f" --head zoo:{name}\n" in page


@pytest.mark.parametrize("method", METHODS)
def test_a_method_finds_its_head_and_drafts_are_accepted(method: str, target) -> None:
    (plain,) = outpace.generate(target, PROMPT, method="autoregressive", max_tokens=24)
    (found,) = outpace.generate(target, PROMPT, method=method, max_tokens=24)
    assert found.tokens == plain.tokens
    assert found.statistics.mean_acceptance_length > 1.3
