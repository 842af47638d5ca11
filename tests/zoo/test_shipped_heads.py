"""The package's draft heads are opened by their methods, match their cards, and draft what is accepted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import outpace
from outpace import recipes, zoo
from outpace.api.opener import ModelOpener
from outpace.bench.measure.workload import encode, load_items
from outpace.cli.commands.zoo import head_row
from outpace.models.fingerprint import target_fingerprint
from outpace.models.heads.formats.folder import load_head
from outpace.recipes._options import usual_heads
from outpace.training.unrolled import unrolled
from tests.tiers import only

OPENER = ModelOpener(cast(Any, SimpleNamespace(name="zoo:target")), load=lambda name: pytest.fail(name))
# its target is trained together with its heads
WITH_A_TARGET = {"syntax-aligned-medusa"}
# method that needs nothing but a head, or several -> the package's, separated by commas
USUAL = {
    name: ",".join(found.values())
    for name, recipe in recipes.find().items()
    if len(recipe.needs) == 1 and name not in WITH_A_TARGET and (found := usual_heads(recipe, {}, OPENER))
}
METHODS = list(USUAL)
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
        assert all(f"[{method}](../outpace/recipes/" in row for method in usual)


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


@pytest.mark.parametrize("method", only(["eagle3", "medusa"], METHODS))
def test_a_method_finds_its_head_and_drafts_are_accepted(method: str, target) -> None:
    (plain,) = outpace.generate(target, PROMPT, method="autoregressive", max_tokens=24)
    (found,) = outpace.generate(target, PROMPT, method=method, max_tokens=24)
    assert found.tokens == plain.tokens
    assert found.statistics.mean_acceptance_length > 1.3


@pytest.mark.slow
@torch.no_grad()
def test_the_true_feature_in_place_of_the_heads_own_output_raises_acceptance_at_the_second_token(
    target,
) -> None:
    """Acceptance of a drawn token, given the same tokens of the target before it."""
    head = load_head("eagle", zoo.path("eagle"), target.target)
    own, true = list[Tensor](), list[Tensor]()
    for item in (item for kind in ("code", "arithmetic", "edit") for item in load_items(kind, 3)):
        prompt = encode(target.tokenizer, item)
        found = outpace.generate(target, [prompt.tolist()], "autoregressive", max_tokens=48, ignore_eos=True)
        tokens = torch.tensor([[*prompt.tolist(), *found[0].tokens]])
        output = target.target.model(tokens, output_hidden_states=True, use_cache=False)
        p, features = output.logits[0].softmax(-1), output.hidden_states[-1][:, :-1]
        columns = torch.ones(features.shape[:2], dtype=torch.bool)
        first, second = (
            head.lm_head(head.norm(each.states)).softmax(-1)
            for each in unrolled(head, tokens, features, columns, 2)
        )
        # token i of the answer is drafted first from column i - 2, and second from column i - 3
        for token in range(len(prompt) + 2, tokens.shape[1]):
            true.append(torch.minimum(p[token - 1], first[token - 2]).sum())
            own.append(torch.minimum(p[token - 1], second[token - 3]).sum())
    assert len(own) > 400 and torch.stack(true).mean() > torch.stack(own).mean() + 0.02
