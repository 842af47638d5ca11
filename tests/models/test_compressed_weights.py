"""Compressed weights: few values per group, the nearest ones; the model that runs is theirs in every way."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import outpace
from outpace.core.contracts import Prompt, Want
from outpace.models.fingerprint import target_fingerprint
from outpace.models.hf.target import HFTarget
from outpace.models.openvino import compressed_weights
from outpace.models.openvino.compressed_weights import FORMATS, GROUP, compress, map_values
from outpace.models.openvino.export import widened

ROUNDING = 3e-5  # of logits of about 1, in float32
SIZES: dict[str, Any] = {"hidden_size": 2 * GROUP, "intermediate_size": 3 * GROUP, "head_dim": GROUP}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path)}


def check_values(before: Tensor, after: Tensor, columns: int, bits: int) -> None:
    """Each group has few values, and they are as close to the weights as evenly spaced ones can be."""
    old, new = before.reshape(-1, columns), after.reshape(-1, columns)
    assert all(1 < len(group.unique()) <= 2**bits for group in new)
    steps = (old.amax(-1).clamp(min=0) - old.amin(-1).clamp(max=0)) / (2**bits - 1)
    errors = (old - new).abs() / steps[:, None]
    # half a step, as zero points are integers another half; scales are rounded to float16
    assert errors.max() <= 0.5 + 0.5 + 2 ** (bits - 11)
    assert 0.2 < errors.mean() < 0.3  # 0.25 for errors between 0 and half a step


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_every_group_has_few_values(name: str, format: str, tiny: Any, environment: dict[str, str]) -> None:
    sizes = {"hidden_size": 2 * GROUP, "n_inner": 3 * GROUP} if name == "gpt2" else SIZES
    model = tiny(name, **sizes).float()
    before = {key: each.detach().clone() for key, each in model.named_parameters()}
    made = compress(model, format, environment)
    after = dict(model.named_parameters())
    for key, old in before.items():
        if key not in made.nodes:
            assert torch.equal(old, after[key])
            continue
        transposed = "h.0" in key or "h.1" in key
        pair = [each.detach().T.contiguous() if transposed else each.detach() for each in (old, after[key])]
        small = format == "int4"
        check_values(*pair, columns=GROUP if small else pair[0].shape[1], bits=4 if small else 8)
    assert sum(before[key].numel() for key in made.nodes) > 0.95 * sum(
        each.numel() for each in before.values()
    )
    assert made.num_bytes < made.bytes_before / 2


@pytest.mark.slow
def test_rows_that_are_no_multiple_of_a_group_have_8_bits(tiny: Any, environment: dict[str, str]) -> None:
    model = tiny("llama", **SIZES | {"intermediate_size": GROUP + 8}).float()
    before = model.model.layers[0].mlp.down_proj.weight.detach().clone()
    compress(model, "int4", environment)
    check_values(before, model.model.layers[0].mlp.down_proj.weight.detach(), GROUP + 8, 8)


def logits(target: HFTarget, tokens: Tensor) -> Tensor:
    cache = target.open(1, 64)
    found = target.prefill([Prompt(tokens)], (0,), cache, Want(prompt_logits=True))[1].logits
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_compiled_logits_are_those_of_the_compressed_model(
    format: str, tiny: Any, environment: dict[str, str]
) -> None:
    model = tiny("llama", **SIZES).float()
    whole = HFTarget(copy.deepcopy(model))
    made = compress(model, format, environment)
    compiled = HFTarget(model, compile=True, weights=made)
    assert compiled.compiled is not None
    tokens = torch.arange(3, 23)
    ours, eager, exact = (logits(each, tokens) for each in (compiled, HFTarget(model), whole))
    assert (ours - eager).abs().max() < ROUNDING
    assert (ours - exact).abs().max() > 100 * ROUNDING
    # a graph that also has the outputs of layers
    cache = compiled.open(1, 64)
    compiled.prefill([Prompt(tokens)], (0,), cache, Want(hidden=frozenset({0, -1})))
    assert (logits(compiled, tokens) - eager).abs().max() < ROUNDING
    # a head that was trained for the model before is used with it
    assert target_fingerprint(compiled) == target_fingerprint(whole) != target_fingerprint(HFTarget(model))


@pytest.mark.slow
def test_a_model_is_compressed_once(
    tiny: Any, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, other = tiny("llama", **SIZES), tiny("llama", **SIZES), tiny("llama", **SIZES)
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight[5, 6] += 0.1
    compress(first.float(), "int4", environment)
    calls: list[Any] = []
    original = compressed_weights._by_nncf
    monkeypatch.setattr(compressed_weights, "_by_nncf", lambda *given: calls.append(1) or original(*given))
    compress(second.float(), "int4", environment)
    assert not calls
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    compress(other.float(), "int4", environment)
    assert calls


@pytest.mark.slow
def test_values_are_computed_once_and_read_from_their_file(
    tiny: Any, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computing them takes longer than all else of a start."""
    first, second = tiny("llama", **SIZES).float(), tiny("llama", **SIZES).float()
    made = compress(first, "int4", environment)
    expected = {name: compressed_weights._value(node) for name, node in made.nodes.items()}
    assert expected.keys() == load_file(made.values).keys()
    monkeypatch.setattr(compressed_weights, "_value", None)
    again = compress(second, "int4", environment)
    found = dict(second.named_parameters())
    assert expected and all(torch.equal(found[name], value) for name, value in expected.items())
    found["model.layers.0.mlp.up_proj.weight"].data.zero_()  # the file stays as it is
    map_values(second, again.values)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.slow
def test_a_trace_holds_no_weights_that_are_replaced(
    tiny: Any, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outpace.models.openvino.compiled.LIGHT_FIXED_BYTES", 0)
    model = tiny("llama", **SIZES).float()
    made = compress(model, "int4", environment)
    copy = dict(widened(model, made.nodes).named_parameters())
    for name, weight in model.named_parameters():
        assert copy[name].shape == weight.shape
        assert torch.equal(copy[name], torch.zeros_like(weight) if name in made.nodes else weight)
    target = HFTarget(model, compile=True, weights=made)
    assert target.compiled is not None and target.compiled._graph.traced is None
    assert target.compiled._models.keys() == {0}  # no copies of the weights for fixed sizes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int8"}, "compile=True"),
        ({"draft_weights": "int8"}, "compile=True"),
        ({"weights": "int3", "compile": True}, "use int8 or int4"),
    ],
)
def test_unsuited_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        outpace.load("zoo:draft", **options)


def test_models_with_most_weights_elsewhere_are_refused(tiny: Any, environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="leave out weights"):
        compress(tiny("mixtral", intermediate_size=512).float(), "int8", environment)


def test_without_nncf_the_extra_is_named(
    tiny: Any, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nncf", None)
    with pytest.raises(ModuleNotFoundError, match=r"outpace\[compile\]"):
        compress(tiny("llama", **SIZES).float(), "int8", environment)
