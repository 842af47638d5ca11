"""Converts a traced model to OpenVINO and compiles it for the CPU; input tensors that share numpy memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from outpace.models.openvino.export import TracedModel
from outpace.models.openvino.paged_attention import PAGED_INPUTS, conversion
from outpace.models.threads import num_cpus

if TYPE_CHECKING:
    from outpace.models.openvino.compressed_weights import CompressedWeights

LARGE = 1 << 16  # least number of elements of a weight matrix; smaller constants stay in float32
INPUT_GROUP = 64  # number of inputs that share a scale
HINTS = {torch.float32: "f32", torch.bfloat16: "bf16"}  # names in OpenVINO's options


def openvino() -> Any:
    """The openvino module. ModuleNotFoundError, with the install command, if it is not installed."""
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "openvino is not installed: pip install 'outpace[compile]'", name="openvino"
        ) from error
    return openvino


def compiled_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for which a model of this dtype is compiled: its own, except for float16, in which a compiled
    forward may overflow. Instead of float16: bfloat16 if this CPU computes in it, else float32."""
    if dtype == torch.float16:
        return torch.bfloat16 if _computes(torch.bfloat16) else torch.float32
    return dtype


def _computes(dtype: torch.dtype) -> bool:
    """Whether OpenVINO computes natively in this dtype, one of HINTS, on this CPU."""
    able = openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return {torch.float32: "FP32", torch.bfloat16: "BF16"}[dtype] in able


def convert(
    graph: TracedModel,
    dtype: torch.dtype,
    compressed: CompressedWeights | None = None,
    *,
    num_threads: int,
) -> Any:
    """Convert the graph to an OpenVINO model for `num_threads` threads, with the matrices of `compressed`;
    with bfloat16 as `dtype`, the remaining matrices are stored in bfloat16. ValueError if the model ignores
    some of the graph's inputs."""
    ov = openvino()
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    # not by `openvino.convert_model`, which takes four times as long and sends telemetry
    front = ov.frontend.FrontEndManager().load_by_framework("pytorch")
    front.add_extension(conversion(ov))
    # it must outlive the conversion
    decoder = TorchScriptPythonDecoder(graph.traced, example_input=graph.example)
    model = front.convert(front.load(decoder))
    shapes: list[list[int]] = [[-1, -1], [-1, -1]]
    shapes += [[-1]] if graph.selects else []
    shapes += [[1, -1, graph.features]] if graph.features else []
    shapes += [[-1] * len(shape) for shape, _ in PAGED_INPUTS]
    shapes += [[-1] * 4] * len(graph.example["cached"])
    if len(model.inputs) != len(shapes):
        raise ValueError(
            f"its graph takes {len(model.inputs)} inputs, not {len(shapes)}: it ignores some of them"
        )
    for port, shape in zip(model.inputs, shapes, strict=True):
        port.get_node().set_partial_shape(ov.PartialShape(shape))
    for port in model.inputs[len(shapes) - len(graph.example["cached"]) :]:
        port.get_node().set_element_type(ov.Type.dynamic)  # OpenVINO chooses the dtype of its KV cache
    if compressed is not None:
        compressed.use_in(model)
    if min(num_threads, num_cpus()) == 1:
        split_gates(model)
    if dtype == torch.bfloat16:
        store_in_bfloat16(model)
    model.validate_nodes_and_infer_types()
    return model


def fix_batch_of_one(model: Any) -> None:
    """Set the batch size of token ids and position ids to the constant 1, which makes operations faster."""
    for port in model.inputs[:2]:
        port.get_node().set_partial_shape(openvino().PartialShape([1, -1]))
    model.validate_nodes_and_infer_types()


def fix_size(model: Any, graph: TracedModel, size: int, lookups: Sequence[Sequence[int]]) -> None:
    """Fix the shapes for inferences over `size` tokens of one row, a chain, so that they are not computed at
    every inference. `lookups`: shapes of the values that are looked up by position id."""
    paged = graph.num_inputs
    shapes: dict[int, Sequence[int]] = {0: (1, size), 1: (1, size)}
    if graph.selects:
        shapes[2] = (size,)
    if graph.features:
        shapes[paged - 1] = (1, size, graph.features)
    # (index in PAGED_INPUTS, length): one row has one cache length and two bounds each of its tokens and
    # blocks; a chain needs no mask
    shapes |= {paged + index: (length,) for index, length in ((0, 1), (1, 2), (3, 2), (5, 0), (6, 0))}
    first = paged + len(PAGED_INPUTS) + len(graph.example["cached"])
    shapes |= dict(enumerate(lookups, first))
    for index, shape in shapes.items():
        model.inputs[index].get_node().set_partial_shape(openvino().PartialShape(list(shape)))
    model.validate_nodes_and_infer_types()


def split_gates(model: Any) -> None:
    """Prevent OpenVINO from fusing gated MLPs: with AMX the fused operation divides the number of threads by
    two and crashes with one thread (OpenVINO 2026.4). The fusion requires the down projection's matrix in
    transposed form, so it is stored untransposed."""
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


def store_in_bfloat16(model: Any) -> None:
    """Convert the weights, which were traced in float32 from a bfloat16 model, back to bfloat16: the compiled
    model keeps a copy of them, which then takes half the memory."""
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
        wide.get_rt_info()["decompression_0"] = (
            ""  # else OpenVINO would fold the conversion into a float32 constant
        )
        for reader in readers:
            reader.replace_source_output(wide.output(0))


def build(model: Any, dtype: torch.dtype, *, num_threads: int, cache_in_8_bits: bool = False) -> Any:
    """Compile the model for `num_threads` threads of this CPU, in the precision of `dtype` if the CPU
    supports it, else float32. Its KV cache is in the same precision, or in 8 bits."""
    core = openvino().Core()
    hint = HINTS[dtype] if _computes(dtype) else "f32"
    options = {
        "INFERENCE_PRECISION_HINT": hint,
        "KV_CACHE_PRECISION": "u8" if cache_in_8_bits else hint,  # OpenVINO's default is 8 bits
        # in products with compressed weights OpenVINO may quantise activations to 8 bits, in groups that
        # share a scale; 0: it does not, so that float32 logits are exactly those of the compressed weights
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0 if dtype == torch.float32 else INPUT_GROUP,
        "INFERENCE_NUM_THREADS": num_threads,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # target and draft share the cores with other processes
    }
    if cache_in_8_bits:
        # OpenVINO's default quantises keys by channel: all tokens of a cache block, rejected draft tokens
        # included, share the scale of a channel
        options["KEY_CACHE_QUANT_MODE"] = "BY_TOKEN"
    return core.compile_model(model, "CPU", options)


def torch_type(kind: Any) -> torch.dtype:
    """The torch dtype of an OpenVINO element type."""
    known = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "u8": torch.uint8}
    return known[kind.get_type_name()]


def shared(tensor: Tensor) -> Any:
    """An OpenVINO tensor that shares the memory of a torch tensor."""
    ov = openvino()
    if tensor.dtype == torch.bfloat16:  # numpy has no such type
        return ov.Tensor(tensor.view(torch.uint16).numpy(), list(tensor.shape), ov.Type.bf16)
    return ov.Tensor(tensor.numpy(), shared_memory=True)


class InputTensor:
    """One input tensor of an inference request, whose memory is reused and rewritten for every inference."""

    def __init__(self, request: Any, index: int, dtype: Any) -> None:
        self._request, self._index = request, index
        self._memory = numpy.zeros(0, dtype)
        self._tensor: Any = None
        self._shape: tuple[int, ...] | None = None
        self.array = self._memory  # numpy view of the memory in the tensor's present shape

    def take(self, *shape: int) -> numpy.ndarray[Any, Any]:
        """Give the tensor this shape and return its memory as an array to write to; content is undefined."""
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
