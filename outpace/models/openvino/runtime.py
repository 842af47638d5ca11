"""OpenVINO as what runs a traced model on a CPU: compiling it once for all sizes, and feeding it without
copies.

Letters: those of `export`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch
from torch import Tensor

from outpace.models.openvino.export import Graph
from outpace.models.openvino.paged_attention import PLACES, conversion
from outpace.models.threads import num_cpus

LARGE = 1 << 16  # numbers from which a constant is a weight; biases and norms stay as they were traced
HINTS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def openvino() -> Any:
    """The module, or one sentence about how to get it."""
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "openvino is not installed: pip install 'outpace[compile]'", name="openvino"
        ) from error
    return openvino


def convert(graph: Graph, dtype: torch.dtype) -> Any:
    """The graph as an OpenVINO model, its weights in `dtype`."""
    ov = openvino()
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    # the front end itself: `openvino.convert_model` takes four times as long, and reports to its makers what
    # it meets
    front = ov.frontend.FrontEndManager().load_by_framework("pytorch")
    front.add_extension(conversion(ov))
    decoder = TorchScriptPythonDecoder(
        graph.traced, example_input=graph.example
    )  # has to outlive the conversion
    model = front.convert(front.load(decoder))
    shapes: list[list[int]] = [[-1, -1], [-1, -1]]
    shapes += [[-1]] if graph.selects else []
    shapes += [[-1] * len(shape) for shape, _ in PLACES]
    shapes += [[-1] * 4] * len(graph.example["cached"])
    if len(model.inputs) != len(shapes):
        raise ValueError(
            f"its graph takes {len(model.inputs)} inputs, not {len(shapes)}: it ignores some of them"
        )
    for port, shape in zip(model.inputs, shapes, strict=True):
        port.get_node().set_partial_shape(ov.PartialShape(shape))
    for port in model.inputs[len(shapes) - len(graph.example["cached"]) :]:
        port.get_node().set_element_type(ov.Type.dynamic)  # the runtime stores what it computes with
    if min(torch.get_num_threads(), num_cpus()) == 1:
        part_gates(model)
    if dtype == torch.bfloat16:
        narrow(model)
    model.validate_nodes_and_infer_types()
    return model


def in_one_row(model: Any) -> None:
    """Fix that ids and positions stand in one row: operations on a known number of rows are faster."""
    for port in model.inputs[:2]:
        port.get_node().set_partial_shape(openvino().PartialShape([1, -1]))
    model.validate_nodes_and_infer_types()


def part_gates(model: Any) -> None:
    """Keep the runtime from joining gated layers, which on processors with AMX it shares out between halves
    of its threads: half of one is none, and it divides by that (OpenVINO 2026.4). What it joins has the last
    of the three matrices transposed, so that one is stored as it is multiplied."""
    ov = openvino()
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul" or not node.get_attributes()["transpose_b"]:
            continue
        gated, weight = (value.get_node() for value in node.input_values())
        if weight.get_type_name() != "Constant" or not {"Swish", "Gelu"} & {
            value.get_node().get_type_name() for value in gated.input_values()
        }:
            continue
        stored = ov.op.Constant(numpy.ascontiguousarray(weight.data.T))
        product = ov.opset13.matmul(node.input_value(0), stored, False, False)
        for reader in list(node.output(0).get_target_inputs()):
            reader.replace_source_output(product.output(0))


def narrow(model: Any) -> None:
    """Hold weights that were traced in float32 in the bfloat16 they came in: what is compiled keeps a copy of
    them."""
    ov = openvino()
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Constant" or node.get_element_type() != ov.Type.f32:
            continue
        if math.prod(node.shape) < LARGE:
            continue
        readers = list(node.output(0).get_target_inputs())
        data = torch.from_numpy(node.data.copy()).to(torch.bfloat16)
        weight = ov.op.Constant(shared(data), shared_memory=False)
        wide = ov.opset13.convert(weight, ov.Type.f32)
        wide.get_rt_info()["decompression_0"] = ""  # else it would be computed here and now
        for reader in readers:
            reader.replace_source_output(wide.output(0))


def build(model: Any, dtype: torch.dtype) -> Any:
    """The model compiled for this machine's CPU, as precise as `dtype` where the CPU has it, else in
    float32."""
    core = openvino().Core()
    able = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    name = {"f16": "FP16", "bf16": "BF16"}.get(HINTS[dtype])
    hint = HINTS[dtype] if name in able else "f32"
    options = {
        "INFERENCE_PRECISION_HINT": hint,
        "KV_CACHE_PRECISION": hint,  # else eight bits a number
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # target and draft take turns on the same cores, which others may use as well
    }
    return core.compile_model(model, "CPU", options)


def torch_type(kind: Any) -> torch.dtype:
    """The dtype of a runtime's numbers."""
    return {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[kind.get_type_name()]


def shared(tensor: Tensor) -> Any:
    """An OpenVINO tensor on the same memory; its shape may be set anew as long as it fits."""
    ov = openvino()
    if tensor.dtype == torch.bfloat16:  # numpy has no such type
        return ov.Tensor(tensor.view(torch.uint16).numpy(), list(tensor.shape), ov.Type.bf16)
    return ov.Tensor(tensor.numpy(), shared_memory=True)


class Feed:
    """One input of a request: memory that is handed to the runtime once, and filled anew for every
    forward."""

    def __init__(self, request: Any, index: int, dtype: Any) -> None:
        self._request, self._index = request, index
        self._memory = numpy.zeros(0, dtype)
        self._tensor: Any = None
        self._shape: tuple[int, ...] | None = None
        self.array = self._memory  # what was taken last

    def take(self, *shape: int) -> numpy.ndarray[Any, Any]:
        """The memory in this shape, to be filled; what was in it is not kept."""
        if shape == self._shape:
            return self.array
        size = math.prod(shape)
        if self._tensor is None or size > len(self._memory):
            self._memory = numpy.zeros(max(1, 2 * size), self._memory.dtype)
            self._tensor = openvino().Tensor(self._memory, shared_memory=True)
            self._tensor.shape = shape
            self._request.set_input_tensor(self._index, self._tensor)
        else:
            self._tensor.shape = shape
        self._shape, self.array = shape, self._memory[:size].reshape(shape)
        return self.array
