"""A transformers model as a graph: ids, positions and places in a cache of blocks in, logits out.

The model is traced as it stands, in float32; the runtime decides where it multiplies in less. The trace runs
on a copy that shares the weights which are float32 already. Nothing in the graph depends on how many tokens
there are: those of all sequences stand one after the other in one row.

Letters: N tokens of all sequences, H heads, G heads of keys and values, D head size, V vocabulary.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import causal_mask_function

from outpace.models.hf.kv_cache import Planes
from outpace.models.openvino.paged_attention import PLACES

NAME = "outpace_graph"
TOKENS = 3  # of the example that is traced
FIRST = 7  # its first position; no other size in it is equal to one of these by chance alone


@dataclass(frozen=True, eq=False)
class Graph:
    """What was traced: it takes ids, positions, `keep` if it selects, places, planes of the cache."""

    traced: Any  # torch.jit.ScriptModule
    example: dict[str, Any]
    selects: bool  # takes `keep`: which tokens logits are wanted for
    window: int | None  # of the layer that sees least far; None: all see everything


class Past(Cache):
    """The cache as the traced forward sees it: it hands keys and values on, and remembers whose they are."""

    layers: list[Any] = []
    is_sliding: list[bool] = []
    is_linear: list[bool] = []
    is_dummy: list[bool] = []

    def __init__(self, planes: Planes, places: tuple[Tensor, ...], cached: tuple[Tensor, ...]) -> None:
        # the parent's __init__ demands layer objects
        self.planes, self.places, self.cached = planes.places, places, cached
        self._stored: tuple[int, Any, Any] | None = None  # by the layer that attends next
        self.windows: list[int] = []

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        self._stored = layer_idx, key_states.shape, value_states.shape
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, Any]:
        """Keys seen, and in place of their offset this object: it reaches the mask function unchanged."""
        return query_length, self

    def taken(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The planes of the layer that attends with these keys and values now."""
        stored, self._stored = self._stored, None
        if stored is None or stored[1:] != (key.shape, value.shape):
            raise ValueError("it attends to other keys and values than it stores")
        places = self.planes[stored[0]]
        return self.cached[places[0]], self.cached[places[1]]


@dataclass(frozen=True, eq=False)
class Seen:
    """In place of a mask: how far the layers of one kind see, and in which cache."""

    past: Past
    window: int  # 0: everything


def graph_mask(*, kv_offset: Past, mask_function: Any, **rest: Any) -> Seen:
    """The mask function; transformers calls it once per kind of layer."""
    window = window_of(mask_function, rest)
    kv_offset.windows.append(window)
    return Seen(kv_offset, window)


def window_of(rule: Callable[..., Tensor], rest: dict[str, Any]) -> int:
    """How far back a mask's rule sees, 0 for everything; ValueError where there is more to it."""
    if rule is causal_mask_function:
        return 0
    # a rule that transformers itself would not skip has more to it than its reach
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
    query: Tensor,  # (1, H, N, D)
    key: Tensor,  # (1, G, N, D)
    value: Tensor,
    attention_mask: Seen,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:  # (1, N, H, D)
    """Attention over the cache, as one operation."""
    if softcap is not None:
        raise ValueError("its attention caps its scores")
    heads, groups, size, value_size = (  # a trace makes tensors of sizes
        int(each) for each in (query.shape[1], key.shape[1], query.shape[3], value.shape[3])
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
        *past.places,
        sinks,
        size**-0.5 if scaling is None else float(scaling),
        attention_mask.window,
        groups,
        size,
        value_size,
    )
    return output.reshape(1, -1, heads, value_size), None


class Explicit(nn.Module):
    """The model with everything that its forward reads as an input."""

    def __init__(self, model: PreTrainedModel, planes: Planes, selects: bool) -> None:
        super().__init__()
        self.model, self.planes, self.selects = model, planes, selects
        self.windows: list[int] = []

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        keep: Tensor,
        places: tuple[Tensor, ...],
        cached: tuple[Tensor, ...],
    ) -> Tensor:  # (1, N or kept, V)
        past = Past(self.planes, places, cached)
        options = {"logits_to_keep": keep} if self.selects else {}
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            past_key_values=past,
            use_cache=True,
            return_dict=True,
            **options,
        )
        self.windows = past.windows
        return output.logits.float()


def refuse_untraceable(model: PreTrainedModel, parameters: Set[str], *, dense: bool) -> None:
    """Raise ValueError for forwards that a trace would not follow."""
    if "position_ids" not in parameters:
        raise ValueError("it counts positions itself")
    if dense:
        raise ValueError("it computes its attention itself")
    kinds = str(getattr(model.config.get_text_config(), "rope_parameters", None))
    if "'dynamic'" in kinds or "'longrope'" in kinds:
        raise ValueError("its rotations depend on the length of the text")


@torch.no_grad()
def trace(model: PreTrainedModel, planes: Planes, *, selects: bool) -> Graph:
    """The model's forward as a graph; the model itself stays as it is."""
    explicit = Explicit(widened(model), planes, selects)
    example: dict[str, Any] = {
        "ids": torch.zeros(1, TOKENS, dtype=torch.int64),
        "positions": torch.arange(FIRST, FIRST + TOKENS)[None],
        "keep": torch.arange(TOKENS),
        "places": tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in PLACES),
        "cached": tuple(torch.zeros(1, 1, 1, 1) for _ in range(sum(planes.counts))),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # every Python number in the model's code is warned about
        traced = torch.jit.trace(explicit, example_kwarg_inputs=example, strict=False, check_trace=False)
    return Graph(
        traced, example, selects, min((window for window in explicit.windows if window), default=None)
    )


def widened(model: PreTrainedModel) -> PreTrainedModel:
    """The same model in float32, with the attention that can be traced; weights in float32 are shared."""
    shared = {
        id(each): each for each in (*model.parameters(), *model.buffers()) if each.dtype == torch.float32
    }
    match = copy.deepcopy(model, memo=shared).float().eval()
    for module in match.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation_internal"):
            config._attn_implementation_internal = NAME
    if hasattr(match, "set_experts_implementation"):
        match.set_experts_implementation(
            "batched_mm"
        )  # the others loop over the experts that this example chooses
    return match


AttentionInterface.register(NAME, graph_attention)
AttentionMaskInterface.register(NAME, graph_mask)
