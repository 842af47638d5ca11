"""Traces a transformers model as a graph: token ids, position ids and a paged KV cache in, logits out.

The model is traced in float32, as a copy that shares float32 weights; OpenVINO sets a lower precision when it
compiles. The tokens of all sequences are concatenated in a batch of one; their number may vary.

Letters: N tokens of all sequences, H query heads, G key and value heads, D head size, V vocabulary size, F
size of a draft head's features.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Container, Set
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import causal_mask_function

from outpace.models.cache_argument import CACHE_ARGUMENT, cache_argument
from outpace.models.eager.captures import OutputCapture
from outpace.models.forward.kv_cache import Planes
from outpace.models.openvino.paged_attention import PAGED_INPUTS

NAME = "outpace_graph"
TOKENS = 3  # number of tokens of the example input used for tracing
FIRST = 7  # first position id of the example; no dimension of the example has this size


@dataclass(frozen=True, eq=False)
class TracedModel:
    """A traced model. Its inputs in order: token ids, position ids, `keep` if `selects`, features of a draft
    head, the inputs of paged attention (PAGED_INPUTS), the planes of the KV cache. Its outputs: logits of the
    kept tokens, then the hidden states of all tokens, one tensor per layer."""

    traced: Any  # torch.jit.ScriptModule, which copies the weights; set to None after the conversion
    example: dict[str, Any]  # the inputs with which it was traced
    selects: bool  # whether it has the input `keep`: indices of the tokens whose logits are computed
    window: int | None  # length of the shortest sliding window; None: all layers have full attention
    layers: tuple[int, ...] = ()  # layers whose outputs it returns; -1: the input of the LM head
    features: int = 0  # size of a token's feature, an input of draft heads; 0: no such input

    @property
    def num_inputs(self) -> int:
        """Number of inputs before the inputs of paged attention."""
        return 2 + self.selects + (self.features > 0)


class TracedCache(Cache):
    """The KV cache object passed to the model during tracing: records the layer of each call's keys and
    values, so that attention uses the planes of that layer."""

    layers: list[Any] = []
    is_sliding: list[bool] = []
    is_linear: list[bool] = []
    is_dummy: list[bool] = []

    def __init__(self, planes: Planes, paged_inputs: tuple[Tensor, ...], cached: tuple[Tensor, ...]) -> None:
        # transformers' Cache.__init__ requires layer objects, so it is not called
        self.planes, self.paged_inputs, self.cached = planes.of_layer, paged_inputs, cached
        self._stored: tuple[int, Any, Any] | None = None  # layer and shapes of the last `update`
        self.windows: list[int] = []

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        self._stored = layer_idx, key_states.shape, value_states.shape
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, Any]:
        """Number of keys, and this object as their offset, which transformers passes on to the mask
        function."""
        return query_length, self

    def taken(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The cache planes of the layer whose keys and values were updated last. ValueError if the shapes of
        these keys and values differ from the updated ones."""
        stored, self._stored = self._stored, None
        if stored is None or stored[1:] != (key.shape, value.shape):
            raise ValueError("it attends to other keys and values than it stores")
        paged_inputs = self.planes[stored[0]]
        return self.cached[paged_inputs[0]], self.cached[paged_inputs[1]]


@dataclass(frozen=True, eq=False)
class TracedMask:
    """The mask argument of the attention function: a layer type's sliding window, and the cache."""

    past: TracedCache
    window: int  # length in tokens; 0: full attention


def graph_mask(*, kv_offset: TracedCache, mask_function: Any, **rest: Any) -> TracedMask:
    """The attention mask function for tracing, which transformers calls once per layer type. ValueError for
    masks that are neither causal nor sliding windows."""
    window = window_of(mask_function, rest)
    kv_offset.windows.append(window)
    return TracedMask(kv_offset, window)


def window_of(rule: Callable[..., Tensor], rest: dict[str, Any]) -> int:
    """Length of a mask rule's sliding window in tokens; 0 for full attention. ValueError for other rules."""
    if rule is causal_mask_function:
        return 0
    # only masks that transformers may skip are plain sliding windows or chunks of `local_size` tokens
    reach = (
        rest.get("local_size")
        if rest.get("allow_is_causal_skip", False) and not rest.get("use_vmap")
        else None
    )
    if reach:
        queries = torch.tensor((0, reach - 1, reach, 2 * reach + 1))[:, None]
        keys = torch.arange(2 * reach + 2)
        zero = torch.zeros((), dtype=torch.int64)
        if torch.equal(rule(zero, zero, queries, keys), (keys <= queries) & (keys > queries - reach)):
            return int(reach)
    raise ValueError("its masks are neither causal nor windows")


def graph_attention(
    module: nn.Module,
    query: Tensor,  # (1, query heads, tokens, head dimension)
    key: Tensor,  # (1, key heads, tokens, head dimension)
    value: Tensor,  # (1, key heads, tokens, head dimension of values)
    attention_mask: TracedMask,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:  # (1, tokens, query heads, head dimension of values)
    """Attention over the paged KV cache, traced as one operation. ValueError for layers with a soft cap."""
    if softcap is not None:
        raise ValueError("its attention caps its scores")
    heads, groups, size, value_size = (  # sizes are tensors while tracing
        int(size) for size in (query.shape[1], key.shape[1], query.shape[3], value.shape[3])
    )
    flat = [
        states.transpose(1, 2).reshape(-1, states.shape[1] * states.shape[3])
        for states in (query, key, value)
    ]
    past = attention_mask.past
    sinks = torch.zeros(0, 0, 0, 0) if s_aux is None else s_aux.reshape(1, heads, 1, 1)
    output = torch.ops.outpace.paged_attention(
        *flat,
        *past.taken(key, value),
        *past.paged_inputs,
        sinks,
        size**-0.5 if scaling is None else float(scaling),
        attention_mask.window,
        groups,
        size,
        value_size,
    )
    return output.reshape(1, -1, heads, value_size), None


class TraceWrapper(nn.Module):
    """A module for tracing: the model with its KV cache as explicit tensor inputs."""

    def __init__(
        self, model: PreTrainedModel, planes: Planes, selects: bool, layers: tuple[int, ...], features: int
    ) -> None:
        super().__init__()
        self.model, self.planes, self.selects = model, planes, selects
        self.layers, self.features = layers, features
        parameters = inspect.signature(model.forward).parameters.keys()
        self.cache_argument = cache_argument(parameters) or CACHE_ARGUMENT
        self.windows: list[int] = []

    def forward(
        self,
        # (1, N) token ids, (1, N) position ids, if `selects` (kept,) indices, if `features` (1, N, F): only
        # inputs that the model uses, as the graph would lack the others
        inputs: tuple[Tensor, ...],
        paged_inputs: tuple[Tensor, ...],
        cached: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:  # (1, N or kept, V), and per layer (1, N, D)
        past = TracedCache(self.planes, paged_inputs, cached)
        ids, positions, *others = inputs
        keep = others.pop(0) if self.selects else None
        options: dict[str, Any] = {"features": others.pop()} if self.features else {}
        # the LM head's input is an output too, for all tokens: tokens are selected at the head itself
        at_head = self.selects and -1 in self.layers
        if keep is not None and not at_head:
            options["logits_to_keep"] = keep
        config = self.model.config.get_text_config()
        capture = OutputCapture(self.model, config.num_hidden_layers)
        with capture.capture(frozenset(self.layers), True, keep if at_head else None) as hidden:
            output = self.model(
                input_ids=ids,
                position_ids=positions,
                use_cache=True,
                return_dict=True,
                **{self.cache_argument: past},
                **options,
            )
        self.windows = past.windows
        return output.logits.float(), *[hidden[layer].float() for layer in self.layers]


def refuse_untraceable(model: PreTrainedModel, parameters: Set[str], *, dense: bool) -> None:
    """Raise ValueError for models whose trace would not be equivalent: without position ids as input, with
    custom attention code, or with rotary frequencies that depend on the length."""
    if "position_ids" not in parameters:
        raise ValueError("it takes no position ids")
    if dense:
        raise ValueError("it has attention code of its own")
    kinds = str(getattr(model.config.get_text_config(), "rope_parameters", None))
    if "'dynamic'" in kinds or "'longrope'" in kinds:
        raise ValueError("its rotary frequencies depend on the length of the text")


@torch.no_grad()
def trace(
    model: PreTrainedModel,
    planes: Planes,
    *,
    selects: bool,
    layers: tuple[int, ...] = (),
    replaced: Container[str] = (),
) -> TracedModel:
    """Trace the model's forward, with the outputs of `layers`, as a graph; the model itself is not changed.
    `replaced`: names of parameters that are replaced in the graph later: in the trace they are zeros, which
    take no memory. ValueError for a layer that the model lacks."""
    features = int(getattr(model, "feature_size", 0))
    wrapper = TraceWrapper(widened(model, replaced), planes, selects, layers, features)
    inputs = [torch.zeros(1, TOKENS, dtype=torch.int64), torch.arange(FIRST, FIRST + TOKENS)[None]]
    inputs += [torch.arange(TOKENS)] * selects
    inputs += [torch.zeros(1, TOKENS, features)] * (features > 0)
    example: dict[str, Any] = {
        "inputs": tuple(inputs),
        "paged_inputs": tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in PAGED_INPUTS),
        "cached": tuple(torch.zeros(1, 1, 1, 1) for _ in range(sum(planes.counts))),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about every Python number in the model's code
        traced = torch.jit.trace(wrapper, example_kwarg_inputs=example, strict=False, check_trace=False)
    window = min((window for window in wrapper.windows if window), default=None)
    return TracedModel(traced, example, selects, window, layers, features)


def widened(model: PreTrainedModel, replaced: Container[str] = ()) -> PreTrainedModel:
    """A copy of the model in float32 with `graph_attention` as its attention; float32 weights are shared, and
    the `replaced` parameters are zeros."""
    shared = {
        id(weight): weight
        for weight in (*model.parameters(), *model.buffers())
        if weight.dtype == torch.float32
    }
    shared |= {
        # Memory that is never written: the system maps all of it to one page. torch.zeros would write it.
        id(weight): nn.Parameter(
            torch.from_numpy(numpy.zeros(weight.shape, numpy.float32)), requires_grad=False
        )
        for name, weight in model.named_parameters(remove_duplicate=False)
        if name in replaced
    }
    match = copy.deepcopy(model, memo=shared).float().eval()
    for module in match.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation_internal"):
            config._attn_implementation_internal = NAME
    if hasattr(match, "set_experts_implementation"):
        # other implementations loop over the experts that the example selects
        match.set_experts_implementation("batched_mm")
    return match


AttentionInterface.register(NAME, graph_attention)
AttentionMaskInterface.register(NAME, graph_mask)
