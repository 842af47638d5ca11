"""Weights of 8 or 4 bits for compiled models: integers with scales, made by NNCF and kept in a cache.

A matrix is divided into groups: in 8 bits a group is a row, in 4 bits `GROUP` columns of a row. A group has
one scale and one zero point. Matrices whose rows are no multiple of `GROUP` have 8 bits even with int4.

The torch parameters are set to the dequantised values, so that eager forwards, and draft heads that use the
embedding and the LM head, compute with the same weights. These values are kept in the cache too and mapped
from the file, so that they take memory only where they are read. Of a draft head only its own matrices are
compressed; modules that it shares with the target stay as they are.
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
LAYOUT = 2  # version of the cached files; increase it when compression changes
LEAST_SHARE = 0.5  # a model with a smaller share of its weights in matrices is refused
TRACED = "self.model."  # prefix of the names of parameters in a traced graph
FILE, VALUES = "weights.xml", "values.safetensors"  # in the folder of a model
ONE_CALL = 1 << 28  # weights that are compressed together, to bound the memory for their float32 values


@dataclass(frozen=True, eq=False)
class CompressedWeights:
    """The compressed matrices of a model."""

    format: str  # of FORMATS
    fingerprint: str  # of the model before compression
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
    """Map the model's parameters that are in this file to the file: they are read when needed, and memory
    used for them so far is freed."""
    parameters = dict(model.named_parameters())
    for name, value in load_file(values).items():
        parameters[name].data = value


def compress(
    model: PreTrainedModel,
    format: str,
    environment: Mapping[str, str] = os.environ,
    advance: Callable[[str], None] = lambda stage: None,
    *,
    besides: tuple[str, ...] = (),  # parameters whose names have these prefixes are not compressed
) -> CompressedWeights:
    """Compress a model's matrices, or read them from the cache, and set its parameters to the dequantised
    values. ValueError for an unknown format, a device other than a CPU, and a model with most of its weights
    outside of matrices; ModuleNotFoundError without OpenVINO or NNCF."""
    if format not in FORMATS:
        raise ValueError(f"there are no weights in {format}: use {' or '.join(FORMATS)}")
    if model.device.type != "cpu":
        raise ValueError(f"weights in {format} are for CPUs: use device cpu, or leave out weights")
    ov, matrices = openvino(), dict(_matrices(model, besides))
    whole = sum(weight.numel() for name, weight in model.named_parameters() if not name.startswith(besides))
    own = sum(matrix.weight.numel() for matrix in matrices.values())
    if own < LEAST_SHARE * whole:
        raise ValueError(
            f"{type(model).__name__} has {own / whole:.0%} of its weights in linear layers and embeddings, "
            f"and only these can be compressed to {format}: leave out weights"
        )
    fingerprint = model_fingerprint(model)
    folder = cache_folder(environment, "weights") / f"{type(model).__name__}-{_key(model, matrices, format)}"
    advance(f"compressing to {format}")
    if not (folder / FILE).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            fresh = Path(temporary) / "weights"
            fresh.mkdir()
            ov.save_model(_compressed(matrices, format), str(fresh / FILE), compress_to_fp16=False)
            if not folder.is_dir():  # another process may have written it meanwhile
                os.replace(fresh, folder)
    stored = ov.Core().read_model(str(folder / FILE))
    nodes = {result.get_friendly_name(): result.input_value(0).get_node() for result in stored.get_results()}
    values = folder / VALUES
    if not values.is_file():
        advance(f"writing the values of {format}")
        _write({name: _value(nodes[name]).to(m.weight.dtype) for name, m in matrices.items()}, values)
    map_values(model, values)
    for name, parameter in model.named_parameters():
        if name not in matrices and not name.startswith(besides):
            parameter.data = parameter.data.clone()  # else it keeps the whole checkpoint file in memory
    size = sum(matrix.weight.numel() * matrix.weight.element_size() for matrix in matrices.values())
    num_bytes = (folder / FILE).with_suffix(".bin").stat().st_size
    return CompressedWeights(format, fingerprint, nodes, num_bytes, size, values)


def with_matrix(weights: CompressedWeights, name: str, weight: nn.Parameter) -> CompressedWeights:
    """The same weights with `weight` as the linear layer's matrix of this name: it is compressed to the same
    format and set to the dequantised values."""
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
    """Name and matrix of each linear layer and embedding, except names with a prefix in `besides`; a weight
    that two modules share occurs once."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    seen = {key for key, name in names.items() if name.startswith(besides)}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear | nn.Embedding | Conv1D) or id(weight) in seen or weight is None:
            continue
        seen.add(id(weight))
        yield names[id(weight)], _Matrix(weight, isinstance(module, Conv1D))


def _key(model: PreTrainedModel, matrices: Mapping[str, _Matrix], format: str) -> str:
    """Name of a model's folder in the cache: a hash of all matrices and all settings of the compression."""
    settings = [format, GROUP, LAYOUT, version("nncf"), version("openvino"), type(model).__name__]
    digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=8)
    for name, matrix in matrices.items():
        digest.update(name.encode())
        digest.update(matrix.weight.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _compressed(matrices: Mapping[str, _Matrix], format: str) -> Any:
    """The OpenVINO model that the cache stores: without inputs, and with one output per matrix, computed from
    constants: integers, scales and zero points."""
    ov, results = openvino(), []
    fit = {name for name, matrix in matrices.items() if format == "int4" and matrix.columns % GROUP == 0}
    for in_four_bits in (False, True):
        group: dict[str, _Matrix] = {}
        chosen = [item for item in matrices.items() if (item[0] in fit) == in_four_bits]
        for index, (name, matrix) in enumerate(chosen):
            group[name] = matrix
            if index == len(chosen) - 1 or sum(one.weight.numel() for one in group.values()) > ONE_CALL:
                results += _by_nncf(group, in_four_bits)
                group = {}
    return ov.Model(results, [], "weights")


def _by_nncf(matrices: Mapping[str, _Matrix], in_four_bits: bool) -> list[Any]:
    """OpenVINO outputs that compute the compressed matrices; their names are the parameters'."""
    nncf, ov = _nncf(), openvino()
    inputs, products = [], []
    for matrix in matrices.values():
        weight = matrix.weight.detach().float().contiguous().numpy()
        inputs.append(ov.opset13.parameter([1, matrix.columns], ov.Type.f32))
        products.append(ov.opset13.matmul(inputs[-1], ov.op.Constant(weight), False, not matrix.transposed))
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
    """Write a file of tensors; other processes see it only when it is complete."""
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
    """Import nncf with its logging and telemetry switched off."""
    os.environ.setdefault("NNCF_CI", "1")  # disables telemetry
    try:
        import nncf
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "nncf is not installed: pip install 'outpace[compile]'", name="nncf"
        ) from error
    nncf.set_log_level(logging.ERROR)
    return nncf
