"""Methods that draft with a draft model or a draft head: exactly one of them is given or found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import outpace
from outpace.api.methods import choose_method
from outpace.controllers.fixed import Fixed
from outpace.core import contracts
from outpace.core.contracts import Guarantee, Parts, Recipe, Target
from outpace.drafters.compose.fusion import FusedDrafter
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.dspark.head import untrained_dspark
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle3.head import untrained_eagle3
from outpace.models.heads.formats.folder import save_head
from outpace.models.heads.kangaroo.head import untrained_kangaroo
from outpace.models.heads.medusa.head import untrained_medusa
from outpace.recipes import find, get
from outpace.serving.methods import open_methods
from outpace.verifiers.match import Match

METHODS = ["lookup-or-draft", "rasd", "reader"]
TREE_METHODS = ["rasd", "reader", "sam-decoding", "scylla", "taps"]
# kinds of heads that draft chains
CHAINS = "dflash, dspark, eagle, eagle3, hydra, medusa, mlp-speculator, p-eagle, parallelspec or redrafter"
TEXT = "for index in range(10):\n    print(index)\nfor"


@pytest.fixture(scope="module")
def folder(loaded: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An untrained head."""
    target, _ = loaded
    path: Path = tmp_path_factory.mktemp("head")
    save_head(untrained_eagle(target.target), path, target.target)
    return str(path)


@pytest.fixture(scope="module")
def heads(loaded: Any, folder: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A folder with an untrained head of each kind."""
    (target, _), path = loaded, tmp_path_factory.mktemp("heads")
    for made in (untrained_eagle3, untrained_kangaroo):
        save_head(made(target.target), path / made.__name__, target.target)
    for kind, made in (("medusa", untrained_medusa), ("dspark", untrained_dspark)):
        save_head(made(target.target), path / kind, target.target)
    names = {"eagle3": "untrained_eagle3", "kangaroo": "untrained_kangaroo"}
    names |= {kind: kind for kind in ("medusa", "dspark")}
    return {"eagle": folder} | {kind: str(path / name) for kind, name in names.items()}


def drafter_of(parts: Any) -> type:
    assert isinstance(parts.drafter, FusedDrafter)
    return type(parts.drafter._drafter)


def test_options_of_which_one_is_given_exist_and_have_no_value_by_default() -> None:
    found: dict[str, Recipe] = {name: recipe for name, recipe in find().items() if recipe.one_of}
    assert set(found) == {*METHODS, "medusa-typical"}
    for recipe in found.values():
        assert recipe.needs == [recipe.one_of]
        assert [recipe.options[name].default for name in recipe.one_of] == [None, None]


@pytest.mark.parametrize("method", METHODS)
def test_a_head_gives_the_targets_text(method: str, loaded: Any, folder: str) -> None:
    target, _ = loaded
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0}
    [expected] = outpace.generate(target, TEXT, method="autoregressive", **options)
    [found] = outpace.generate(target, TEXT, method=method, head=folder, **options)
    assert found.text == expected.text and found.statistics.num_spec_steps


@pytest.mark.parametrize(
    ("method", "kind"),
    [(method, kind) for method in ("auto", "lookup-or-draft") for kind in ("eagle3", "medusa", "dspark")]
    + [(method, "eagle3") for method in TREE_METHODS],
)
def test_heads_of_several_kinds_draft(method: str, kind: str, loaded: Any, heads: dict[str, str]) -> None:
    target, _ = loaded
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0}
    head = {"heads" if method == "taps" else "head": heads[kind]}
    [expected] = outpace.generate(target, TEXT, method="autoregressive", **options)
    [found] = outpace.generate(target, TEXT, method=method, **head, **options)
    assert found.text == expected.text and found.statistics.num_spec_steps
    assert (kind, heads[kind]) in target.heads


@pytest.mark.parametrize(
    ("method", "kind", "fitting"),
    [
        ("auto", "kangaroo", CHAINS),
        ("reader", "medusa", "eagle or eagle3"),
    ],
)
def test_heads_of_other_kinds_are_refused(
    method: str, kind: str, fitting: str, loaded: Any, heads: dict[str, str]
) -> None:
    message = f"holds a head of {kind}: use it with the method {kind}, or give a head of {fitting}$"
    with pytest.raises(ValueError, match=message):
        outpace.generate(loaded[0], TEXT, method=method, head=heads[kind])


@pytest.mark.parametrize("method", METHODS)
def test_neither_and_both_are_refused(method: str, loaded: Any, folder: str) -> None:
    target, draft = loaded
    with pytest.raises(ValueError, match=f"^{method} needs draft or head: a smaller model"):
        outpace.generate(target, TEXT, method=method)
    with pytest.raises(ValueError, match="give one of them"):
        outpace.generate(target, TEXT, method=method, head=folder, draft=draft)
    with pytest.raises(ValueError, match="give one of them"):
        outpace.generate(target, TEXT, method=method, draft=None)


def test_the_usual_draft_is_used_unless_a_head_is_given() -> None:
    assert choose_method("rasd", {}, "zoo:target")[1] == {"draft": "zoo:draft"}
    assert choose_method("rasd", {"head": "own"}, "zoo:target")[1] == {"head": "own"}


def test_a_greedy_verifier_does_not_judge_the_drafts_of_exact_methods(loaded: Any) -> None:
    class Greedy(Match):
        guarantee = Guarantee.GREEDY

    def greedy_lookup(target: Target, *, depth: int = 3) -> Parts:
        return Parts(target, NGram(), Greedy(), Fixed(depth))

    first = contracts.recipe(paper="none", family="base", guarantee=Guarantee.GREEDY)(greedy_lookup)
    assert list(open_methods(loaded[0], first, {})) == ["greedy-lookup"]
    with pytest.raises(ValueError, match="greedy-lookup is GREEDY and its verifier judges the drafts of all"):
        open_methods(loaded[0], first, {}, [("prompt-lookup", {})])
    with pytest.raises(ValueError, match="greedy-lookup is GREEDY with these options: choose an EXACT"):
        open_methods(loaded[0], first, {}, exact=True)


def test_methods_of_a_server_have_its_draft_unless_they_have_a_head(loaded: Any, folder: str) -> None:
    target, draft = loaded
    first = get("speculative-sampling"), {"draft": draft}
    found = open_methods(target, *first, [("rasd", {}), ("reader", {"head": folder})])
    assert drafter_of(found["rasd"]) is DraftModel and drafter_of(found["reader"]) is FeatureDrafter
    found = open_methods(target, get("rasd"), {"head": folder}, [("reader", {"draft": draft})])
    assert drafter_of(found["rasd"]) is FeatureDrafter and drafter_of(found["reader"]) is DraftModel
    with pytest.raises(ValueError, match="reader needs draft or head"):
        open_methods(target, get("rasd"), {"head": folder}, [("reader", {})])


def test_a_head_given_to_auto_takes_the_place_of_the_usual_draft() -> None:
    _, options = choose_method("auto", {"head": "zoo:hass"}, "zoo:target")
    assert options == {"head": "zoo:hass"}
    _, options = choose_method("auto", {}, "zoo:target")
    assert options == {"draft": "zoo:draft"}
    _, options = choose_method("auto", {}, "some/folder")
    assert options == {}
