"""Compressed weights of draft heads: the head's own matrices, and never those of its target."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import outpace
from outpace.api.opener import ModelOpener
from outpace.core.contracts import Want
from outpace.models.heads.compressed import compress_head, weights_of_head
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.hydra.head import HydraHead, prefix_layer
from outpace.models.heads.position_head import random_parameters
from outpace.models.heads.position_model import PositionModel
from outpace.models.hf.target import HFTarget
from outpace.models.names import resolve
from outpace.models.openvino import compiled
from outpace.models.openvino.compressed_weights import GROUP, CompressedWeights, compress
from tests.models.heads.conftest import disturbed
from tests.tiers import only

ROUNDING = 3e-5  # of logits of about 1, in float32
SIZES: dict[str, Any] = {"hidden_size": 2 * GROUP, "intermediate_size": 3 * GROUP, "head_dim": GROUP}
SIZES |= {"vocab_size": 4 * GROUP}  # above the hidden size, which counts the outputs of a prefix layer
LEAST = 4096  # weights of a matrix; biases, norms, scales and zero points have fewer
KINDS = ("eagle", "eagle3", "prefix layer")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path)}


@pytest.fixture
def target(tiny: Callable[..., Any]) -> HFTarget:
    return HFTarget(tiny("llama", num_hidden_layers=8, **SIZES).float())


@pytest.fixture
def made(eagle: Any, eagle3: Any, target: HFTarget) -> Callable[[str], DraftHead]:
    def make(kind: str) -> DraftHead:
        if kind == "prefix layer":
            return disturbed(prefix_layer(target), 3)
        return eagle() if kind == "eagle" else eagle3(draft_ids=range(0, target.vocab, 2))

    return make


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """Of each graph that is compiled: type -> number of weights in constants of this type."""
    found: list[dict[str, int]] = []
    original = compiled.build

    def build(model: Any, dtype: torch.dtype, **options: Any) -> Any:
        found.append({})
        for node in model.get_ordered_ops():
            if node.get_type_name() == "Constant" and math.prod(node.shape) >= LEAST:
                kind = node.get_element_type().get_type_name()
                found[-1][kind] = found[-1].get(kind, 0) + math.prod(node.shape)
        return original(model, dtype, **options)

    monkeypatch.setattr(compiled, "build", build)
    return found


def copies(target: HFTarget) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in target.model.named_parameters()}


def is_unchanged(target: HFTarget, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(each, before[name]) for name, each in target.model.named_parameters())


def logits(model: HFTarget, head: DraftHead) -> Tensor:
    """Logits of a text of 20 tokens with random features."""
    features = torch.randn(20, head.feature_size, generator=torch.Generator().manual_seed(7))
    cache = model.open(1, 64)
    found = model.keep([torch.arange(3, 23)], (0,), cache, Want(prompt_logits=True), [features]).logits
    assert found is not None
    return found


def matrices(head: DraftHead) -> int:
    """Number of weights in the matrices of the head's own that its graph has."""
    return sum(
        each.numel()
        for name, each in head.own.items()
        if each.dim() > 1 and not name.startswith(head.before_forward)
    )


@pytest.mark.parametrize("kind", only(["eagle3"], KINDS))
@pytest.mark.parametrize("format", ["int8", pytest.param("int4", marks=pytest.mark.slow)])
def test_compiled_logits_are_those_of_the_compressed_head(
    format: str,
    kind: str,
    made: Callable[[str], DraftHead],
    target: HFTarget,
    environment: dict[str, str],
    graphs: list[dict[str, int]],
) -> None:
    head = made(kind)
    whole, before = copy.deepcopy(head), copies(target)
    own = {name: each.detach().clone() for name, each in head.own.items()}
    weights = weights_of_head(head, format, target.model, None, environment)
    opened = HeadModel(head, compile=True, weights=weights)
    assert opened.model.compiled is not None
    ours, eager, exact = (
        logits(model, head) for model in (opened.model, HeadModel(head).model, HeadModel(whole).model)
    )
    assert (ours - eager).abs().max() < ROUNDING
    assert (ours - exact).abs().max() > 100 * ROUNDING
    assert is_unchanged(target, before)
    # what is not in the graph, and what is no matrix, stays whole
    assert weights is not None
    for name, each in head.own.items():
        assert torch.equal(own[name], each) == (name not in weights.nodes)
    graph, *others = graphs  # of all sizes, and of fixed ones
    assert all(each == graph for each in others)
    assert graph["u8" if format == "int8" else "u4"] == matrices(head)


@pytest.mark.slow
def test_matrices_outside_the_graph_stay_whole(
    made: Callable[[str], DraftHead], environment: dict[str, str]
) -> None:
    weights = compress_head(made("eagle3"), "int4", environment)
    assert "lm_head.weight" in weights.nodes and "fc.weight" not in weights.nodes
    assert "fc.weight" in compress_head(made("eagle"), "int4", environment).nodes


@pytest.mark.slow
@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("format", [pytest.param(None, marks=pytest.mark.slow), "int8"])
def test_a_head_uses_the_compressed_matrices_of_its_target(
    format: str | None,
    tied: bool,
    tiny: Callable[..., Any],
    environment: dict[str, str],
    graphs: list[dict[str, int]],
) -> None:
    model = tiny("llama", tie_word_embeddings=tied, **SIZES).float()
    of_target = compress(model, "int4", environment)
    target = HFTarget(model, weights=of_target)
    head, before = untrained_eagle(target), copies(target)
    weights = weights_of_head(head, format, model, of_target, environment)
    opened = HeadModel(head, compile=True, weights=weights)
    assert opened.model.compiled is not None
    assert (logits(opened.model, head) - logits(HeadModel(head).model, head)).abs().max() < ROUNDING
    assert is_unchanged(target, before)
    graph, *others = graphs  # of all sizes, and of fixed ones
    assert all(each == graph for each in others)
    assert graph["u4"] == target.vocab * SIZES["hidden_size"] * (1 if tied else 2)
    assert graph["f32" if format is None else "u8"] == matrices(head)


@pytest.mark.slow
def test_a_head_that_compresses_its_target_is_noticed(
    made: Callable[[str], DraftHead],
    target: HFTarget,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check of the tests above against the mistake that it is for."""
    head, before = made("eagle"), copies(target)
    monkeypatch.setattr(type(head), "from_target", ())
    compress_head(head, "int8", environment)
    assert not is_unchanged(target, before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_the_text_is_that_of_plain_decoding(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = outpace.load("zoo:target", dtype="float32", compile=True, draft_weights="int8")
    before, options = copies(model.target), {"max_tokens": 32, "temperature": 0.0}
    [expected] = outpace.generate(model, "def add(a, b):", method="autoregressive", **options)
    [found] = outpace.generate(model, "def add(a, b):", method=kind, head=f"zoo:{kind}", **options)
    assert found.text == expected.text
    assert found.statistics.mean_acceptance_length > 2
    opened = model.heads[kind, f"zoo:{kind}"].model
    assert opened is not None and opened.compiled is not None
    assert opened.compressed_weights is not None and opened.compressed_weights.format == "int8"
    assert is_unchanged(model.target, before)
    assert [each.name.split("-")[0] for each in (tmp_path / "outpace" / "weights").iterdir()] == [
        type(opened.model).__name__
    ]


@pytest.mark.slow
def test_of_heads_without_a_cache_only_the_prefix_layer_is_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = outpace.load("zoo:draft", dtype="float32", compile=True, draft_weights="int8")
    head = random_parameters(HydraHead(model.target, 2, prefix=prefix_layer(model.target)))
    save_head(head, tmp_path / "head", model.target)
    whole = load_head("hydra", tmp_path / "head", model.target).own
    found = ModelOpener(model).head(("hydra",), tmp_path / "head")
    assert isinstance(found, PositionModel) and found.model is not None
    assert isinstance(found.model.compressed_weights, CompressedWeights)
    for name, each in found.head.own.items():
        is_compressed = name.removeprefix("prefix.") in found.model.compressed_weights.nodes
        assert torch.equal(each, whole[name]) != is_compressed


@pytest.mark.slow
def test_a_head_of_medusa_stays_whole_and_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = outpace.load("zoo:target", dtype="float32", compile=True, draft_weights="int8")
    before, options = copies(model.target), {"max_tokens": 32, "temperature": 0.0}
    [expected] = outpace.generate(model, "def add(a, b):", method="autoregressive", **options)
    [found] = outpace.generate(model, "def add(a, b):", method="medusa", head="zoo:medusa", **options)
    assert found.text == expected.text
    opened = model.heads["medusa", "zoo:medusa"].head
    whole = load_head("medusa", resolve("zoo:medusa"), model.target)
    assert all(torch.equal(each, whole.own[name]) for name, each in opened.own.items())
    assert is_unchanged(model.target, before) and not list(tmp_path.iterdir())
