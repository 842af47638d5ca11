"""Weights of 8 or 4 bits for compiled models: integers with scales, made by NNCF and kept in a cache.

A matrix is divided into groups: its rows in 8 bits, `GROUP` columns of a row in 4 bits. A group stores each
of its weights as an integer, with one scale and one zero point. With 4 bits, matrices whose rows are no
multiple of a group have 8.

The torch parameters are set to the values of the integers, so that forwards that run eagerly, and draft heads
that use the embedding and the LM head, are those of the same model. These values are kept in the cache too
and mapped into memory, which they take only where they are read. Of a draft head only its own matrices are
compressed: what it uses of the target is as compressed as the target is.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from outpace.models.cache_folder import cache_folder
from outpace.models.fingerprint import model_fingerprint
from outpace.models.openvino.runtime import openvino

FORMATS = ("int8", "int4")
GROUP = 64  # columns of a row that share a scale, in 4 bits
LAYOUT = 2  # counted up when other matrices are compressed, or in another way
LEAST_SHARE = 0.5  # of a model's weights that are in matrices; a model with fewer is refused
TRACED = "self.model."  # before the name of a parameter in a traced graph
FILE, VALUES = "weights.xml", "values.safetensors"  # in the folder of a model
ONE_CALL = 1 << 28  # weights that are compressed together, to bound the memory for their float32 values


@dataclass(frozen=True, eq=False)
class CompressedWeights:
    """The compressed matrices of a model."""

    format: str  # of FORMATS
    fingerprint: str  # of the model before
    nodes: Mapping[str, Any]  # name of a parameter -> OpenVINO node that computes it from integers
    num_bytes: int  # of integers, scales and zero points
    bytes_before: int  # of the same matrices in the model's dtype
    values: Path  # file with the values of the matrices in the model's dtype, by name

    def use_in(self, graph: Any) -> None:
        """Let a graph that OpenVINO converted compute its matrices from the integers, in place of the float32
        constants of the same names."""
        for constant in graph.get_ordered_ops():
            name = constant.get_friendly_name().removeprefix(TRACED)
            if constant.get_type_name() != "Constant" or name not in self.nodes:
                continue
            for reader in list(constant.output(0).get_target_inputs()):
                reader.replace_source_output(self.nodes[name].output(0))


def map_values(model: PreTrainedModel, values: Path) -> None:
    """Set the model's parameters in this file to memory that is mapped to it: it is read when it is needed,
    and what was read before is given back."""
    parameters = dict(model.named_parameters())
    for name, value in load_file(values).items():
        parameters[name].data = value


def compress(
    model: PreTrainedModel,
    format: str,
    environment: Mapping[str, str] = os.environ,
    advance: Callable[[str], None] = lambda stage: None,
    *,
    besides: tuple[str, ...] = (),  # parameters whose names begin so stay as they are
) -> CompressedWeights:
    """Compress a model's matrices, or read them from the cache, and set its parameters to these values.
    ValueError for an unknown format, on a device other than a CPU, and for models that
    have most of their weights elsewhere, ModuleNotFoundError without OpenVINO or NNCF."""
    if format not in FORMATS:
        raise ValueError(f"there are no weights in {format}: use {' or '.join(FORMATS)}")
    if model.device.type != "cpu":
        raise ValueError(f"weights in {format} are for CPUs: use device cpu, or leave out weights")
    ov, found = openvino(), dict(_matrices(model, besides))
    whole = sum(each.numel() for name, each in model.named_parameters() if not name.startswith(besides))
    own = sum(each.weight.numel() for each in found.values())
    if own < LEAST_SHARE * whole:
        raise ValueError(
            f"{type(model).__name__} has {own / whole:.0%} of its weights in linear layers and embeddings, "
            f"and only these can be compressed to {format}: leave out weights"
        )
    fingerprint = model_fingerprint(model)
    folder = cache_folder(environment, "weights") / f"{type(model).__name__}-{_key(model, found, format)}"
    advance(f"compressing to {format}")
    if not (folder / FILE).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            fresh = Path(temporary) / "weights"
            fresh.mkdir()
            ov.save_model(_compressed(found, format), str(fresh / FILE), compress_to_fp16=False)
            if not folder.is_dir():  # another process may have written it meanwhile
                os.replace(fresh, folder)
    stored = ov.Core().read_model(str(folder / FILE))
    nodes = {each.get_friendly_name(): each.input_value(0).get_node() for each in stored.get_results()}
    values = folder / VALUES
    if not values.is_file():
        advance(f"writing the values of {format}")
        _write({name: _value(nodes[name]).to(each.weight.dtype) for name, each in found.items()}, values)
    map_values(model, values)
    for name, each in model.named_parameters():
        if name not in found and not name.startswith(besides):
            each.data = each.data.clone()  # else it keeps the whole file of the checkpoint in memory
    size = sum(each.weight.numel() * each.weight.element_size() for each in found.values())
    num_bytes = (folder / FILE).with_suffix(".bin").stat().st_size
    return CompressedWeights(format, fingerprint, nodes, num_bytes, size, values)


def with_matrix(weights: CompressedWeights, name: str, weight: nn.Parameter) -> CompressedWeights:
    """The same weights with `weight` as the linear layer's matrix of this name: it is compressed to the same
    format, and set to these values."""
    matrix = _Matrix(weight, transposed=False)
    in_four_bits = weights.format == "int4" and matrix.columns % GROUP == 0
    (result,) = _by_nncf({name: matrix}, in_four_bits)
    node = result.input_value(0).get_node()
    with torch.no_grad():
        weight.copy_(_value(node))
    return replace(weights, nodes={**weights.nodes, name: node})


@dataclass(frozen=True)
class _Matrix:
    """A weight matrix."""

    weight: nn.Parameter
    transposed: bool  # (inputs, outputs), not (outputs, inputs)

    @property
    def columns(self) -> int:
        return self.weight.shape[0 if self.transposed else 1]


def _matrices(model: PreTrainedModel, besides: tuple[str, ...]) -> Iterator[tuple[str, _Matrix]]:
    """Name and matrix of each linear layer and embedding, but of those whose names begin with one of
    `besides`; a weight that two of them share is named once."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    seen = {key for key, name in names.items() if name.startswith(besides)}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear | nn.Embedding | Conv1D) or id(weight) in seen or weight is None:
            continue
        seen.add(id(weight))
        yield names[id(weight)], _Matrix(weight, isinstance(module, Conv1D))


def _key(model: PreTrainedModel, matrices: Mapping[str, _Matrix], format: str) -> str:
    """Name of a model's folder in the cache: a hash of all matrices and of what decides about the result."""
    settings = [format, GROUP, LAYOUT, version("nncf"), version("openvino"), type(model).__name__]
    found = hashlib.blake2b(json.dumps(settings).encode(), digest_size=8)
    for name, each in matrices.items():
        found.update(name.encode())
        found.update(each.weight.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _compressed(matrices: Mapping[str, _Matrix], format: str) -> Any:
    """The OpenVINO model that the cache stores: it has no inputs, and one output per matrix, which it
    computes from constants of integers, scales and zero points."""
    ov, results = openvino(), []
    fit = {name for name, each in matrices.items() if format == "int4" and each.columns % GROUP == 0}
    for in_four_bits in (False, True):
        group: dict[str, _Matrix] = {}
        chosen = [item for item in matrices.items() if (item[0] in fit) == in_four_bits]
        for index, (name, each) in enumerate(chosen):
            group[name] = each
            if index == len(chosen) - 1 or sum(one.weight.numel() for one in group.values()) > ONE_CALL:
                results += _by_nncf(group, in_four_bits)
                group = {}
    return ov.Model(results, [], "weights")


def _by_nncf(matrices: Mapping[str, _Matrix], in_four_bits: bool) -> list[Any]:
    """OpenVINO outputs that compute the compressed matrices; their names are the parameters'."""
    nncf, ov = _nncf(), openvino()
    inputs, products = [], []
    for each in matrices.values():
        weight = each.weight.detach().float().contiguous().numpy()
        inputs.append(ov.opset13.parameter([1, each.columns], ov.Type.f32))
        products.append(ov.opset13.matmul(inputs[-1], ov.op.Constant(weight), False, not each.transposed))
    graph = ov.Model(products, inputs, "products")
    modes = nncf.CompressWeightsMode
    options: dict[str, Any] = {"mode": modes.INT8_ASYM}
    if in_four_bits:
        options = {"mode": modes.INT4_ASYM, "group_size": GROUP, "all_layers": True}
    with redirect_stdout(StringIO()):  # its progress bars
        graph = nncf.compress_weights(graph, **options)
    results = []
    for name, product in zip(matrices, graph.get_results(), strict=True):
        result = ov.opset13.result(product.input_value(0).get_node().input_value(1))
        result.set_friendly_name(name)
        results.append(result)
    return results


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a file of tensors, which other processes see when it is complete."""
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        fresh = Path(temporary) / path.name
        save_file(tensors, fresh)
        os.replace(fresh, path)


def _value(node: Any) -> Tensor:
    """The float32 weights that an OpenVINO node computes from constants."""
    ov = openvino()
    graph = ov.Model([ov.opset13.result(node.output(0))], [], "value")
    exact = ov.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return torch.from_numpy(exact()[0].copy())


def _nncf() -> Any:
    """Import nncf, and switch off its log lines and the statistics of use that it sends."""
    os.environ.setdefault("NNCF_CI", "1")  # else it reports its use over the network
    try:
        import nncf
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "nncf is not installed: pip install 'outpace[compile]'", name="nncf"
        ) from error
    nncf.set_log_level(logging.ERROR)
    return nncf
