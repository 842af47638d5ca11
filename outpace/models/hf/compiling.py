"""Compiles a model's forwards, with OpenVINO on a CPU and as CUDA graphs on a GPU, and compares their logits
with those of the eager forwards."""

from __future__ import annotations

import warnings

import torch

from outpace.models.cuda_graphs.graph_replay import GraphReplay, record_graph
from outpace.models.eager.contiguous_cache import ContiguousCache
from outpace.models.eager.forward import Forward
from outpace.models.forward.backend import Backend
from outpace.models.forward.request import ForwardRequest
from outpace.models.forward.row_inputs import RowInputs
from outpace.models.openvino.compiled import STAGES, CompiledForward, OnStage
from outpace.models.openvino.compressed_weights import CompressedWeights
from outpace.models.openvino.runtime import HINTS, openvino

# tree attention mask of the nodes (rows) in `check`
TREE = torch.tensor(((1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 0, 1)), dtype=torch.bool)


def compiled(
    forward: Forward,
    on_stage: OnStage = lambda stage: None,
    *,
    trees: bool = True,
    hidden: frozenset[int] = frozenset(),  # layers whose outputs the graph has from the beginning
    weights: CompressedWeights | None = None,  # of the model
    cache_in_8_bits: bool = False,  # the KV cache of forwards on a CPU
    num_threads: int | None = None,  # of forwards on a CPU; None: as many as torch has now
) -> Backend:
    """Compile a model's forwards with OpenVINO (CPU) or CUDA graphs. If that fails, warn with the reason and
    return the eager forwards. ValueError for an unsupported dtype, ModuleNotFoundError without OpenVINO."""
    name, dtype = type(forward.model).__name__, forward.model.dtype
    if forward.keeps_states:
        warnings.warn(
            f"{name} has recurrent layers, which are not compiled yet: it runs eagerly", stacklevel=3
        )
        return forward
    on_cpu = forward.device.type == "cpu"
    if on_cpu:
        if dtype not in (*HINTS, torch.float16):  # see compiled_dtype
            known = f"compiling does not support {str(dtype).removeprefix('torch.')}"
            raise ValueError(f"{known}: load {name} in float32 or bfloat16")
        openvino()
    try:
        made = (
            CompiledForward(
                forward, on_stage, hidden, weights, cache_in_8_bits=cache_in_8_bits, num_threads=num_threads
            )
            if on_cpu
            else GraphReplay(forward, record_graph)
        )
        on_stage(STAGES[4])
        check(made, forward, trees=trees)
        return made
    except Exception as error:  # tracing runs the model's own code, which may raise anything
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        # the cause is in the last line of OpenVINO's messages and in the first of CUDA's
        why = lines[-1 if on_cpu else 0][:200]
        warnings.warn(f"{name} cannot be compiled and runs eagerly: {why}", stacklevel=3)
        return forward


@torch.no_grad()
def check(made: Backend, forward: Forward, *, trees: bool) -> None:
    """Raise ValueError unless compiled and eager logits agree in four forwards: a prompt; one token after it;
    three tokens after it; and a batch of two rows, a draft tree after that prompt (a chain without `trees`)
    and another prompt."""
    vocab = forward.model.config.get_text_config().vocab_size
    tree = RowInputs(0, 9, 13, 9, torch.tensor((0, 1, 1, 2)), TREE, 11)
    chains = [RowInputs(0, 9, end, 9, top=end - 1) for end in (10, 12)]
    text, other = RowInputs(0, 0, 9, 0, top=8), RowInputs(1, 0, 6, 0, top=5)
    in_8_bits = made.cache_in_8_bits
    caches = (
        made.open(2, 13),
        ContiguousCache(forward.planes, 2, 13, forward.device, in_8_bits=in_8_bits),
    )
    last = tree if trees else RowInputs(0, 9, 13, 9, top=12)
    for rows in ([text], *[[chain] for chain in chains], [last, other]):
        sizes = [row.end - row.start for row in rows]
        for cache in caches:
            for row in rows:
                cache.reserve(row.slot, row.end)
        tokens = torch.cat([torch.arange(row.start, row.end) * (7 + row.slot) % vocab for row in rows])
        features = None
        if feature_size := getattr(forward.model, "feature_size", 0):  # of a draft head
            features = torch.linspace(-1, 1, feature_size * len(tokens), device=forward.device)
            features = features.view(len(tokens), -1)
        ours, theirs = (
            reader.read(ForwardRequest(rows, sizes, tokens, features=features), cache).logits
            for reader, cache in zip((made, forward), caches, strict=True)
        )
        assert ours is not None and theirs is not None
        if not theirs.isfinite().all():
            name = str(theirs.dtype).removeprefix("torch.")
            raise ValueError(f"its eager logits are not finite in {name}: load it in float32 or bfloat16")
        error = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
        if not error <= (1e-3 if theirs.dtype == torch.float32 else 0.1):
            raise ValueError(f"its compiled logits differ from the eager ones (by {error:.0%})")
