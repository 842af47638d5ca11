"""A transformers model as a graph: ids, positions, masks and cached keys and values in, logits and new ones out.

The model is traced as it stands, in float32; the runtime decides where it multiplies in less. The trace runs on a copy
that shares the weights which are float32 already. Nothing in the graph depends on how many rows or tokens there are.

Letters: B rows, n tokens of each, T cached places of each, P planes of one shape, H heads, D head size, V vocabulary.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache

from outpace.models.attention import weighed
from outpace.models.kv import Planes

NAME = "outpace_graph"
PLACES, TOKENS = 7, 3  # of the example that is traced; no other size in it is equal to one of them by chance alone


@dataclass(frozen=True, eq=False)
class Kind:
    """What tells the layers of one kind from others: the model's own rule about who sees whom."""

    rule: Callable[..., Tensor]
    reach: int | None  # how far the rule looks back; None: unknown or everything


@dataclass(frozen=True, eq=False)
class Graph:
    """What was traced, and what its inputs stand for: ids, positions, `keep` if it selects, masks, planes."""

    traced: Any  # torch.jit.ScriptModule
    example: dict[str, Any]
    kinds: tuple[Kind, ...]  # one mask each, in order
    selects: bool  # takes `keep`: which tokens of each row logits are wanted for


class Past(Cache):
    """The cache as the traced forward sees it: keys and values are inputs, new ones are collected."""

    layers: list[Any] = []
    is_sliding: list[bool] = []
    is_linear: list[bool] = []
    is_dummy: list[bool] = []

    def __init__(self, planes: Planes, past: tuple[Tensor, ...], masks: tuple[Tensor, ...] | None) -> None:
        # the parent's __init__ demands layer objects
        self.places, self.past, self.masks = planes.places, past, masks
        self.new: dict[int, Tensor] = {}  # plane -> (B, n, H, D)
        self.kinds: list[Kind] = []

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Keys and values (B, H, n, D) behind those of the cache, which stand token by token: (B, T, H, D)."""
        return tuple(
            self._join(plane, states)
            for plane, states in zip(self.places[layer_idx], (key_states, value_states), strict=True)
        )

    def _join(self, plane: int, states: Tensor) -> Tensor:
        self.new[plane] = states.transpose(1, 2)
        return torch.cat((self.past[plane].to(states.dtype), self.new[plane]), 1).transpose(1, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, Any]:
        """Keys seen, and in place of their offset this object: it reaches the mask function unchanged."""
        return PLACES + query_length, self

    def mask(self, kind: Kind) -> Tensor:  # (B, 1, n, T + n)
        """The mask of the next kind of layer."""
        self.kinds.append(kind)
        if self.masks is None:  # while kinds are counted
            return torch.zeros(1, 1, TOKENS, PLACES + TOKENS)
        return self.masks[len(self.kinds) - 1]


def graph_mask(*, kv_offset: Past, mask_function: Any, **rest: Any) -> Tensor:
    """The mask function; transformers calls it once per kind of layer."""
    return kv_offset.mask(Kind(mask_function, reach_of(rest)))


def reach_of(rest: dict[str, Any]) -> int | None:
    """How far a mask's rule looks back, as far as transformers says."""
    # a rule that transformers itself would not skip has more to it than its reach
    simple = rest.get("allow_is_causal_skip", False) and not rest.get("use_vmap", False)
    return rest.get("local_size") if simple else None


def graph_attention(
    module: nn.Module,
    query: Tensor,  # (B, heads, n, D)
    key: Tensor,  # (B, H, T + n, D)
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:  # (B, n, heads, D)
    """Attention in operations that the runtime knows; it shares the keys of a group instead of repeating them."""
    if softcap is not None or s_aux is not None:
        return weighed(query, key, value, attention_mask, scaling, softcap, s_aux)[0], None
    groups = int(query.shape[1]) // int(key.shape[1])  # a trace makes tensors of sizes
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=groups > 1
    )
    return output.transpose(1, 2), None


class Explicit(nn.Module):
    """The model with everything that its forward reads as an input and everything it leaves as an output."""

    def __init__(self, model: PreTrainedModel, planes: Planes, selects: bool) -> None:
        super().__init__()
        self.model, self.planes, self.selects = model, planes, selects
        self.kinds: list[Kind] = []

    def forward(
        self, ids: Tensor, positions: Tensor, keep: Tensor, masks: tuple[Tensor, ...] | None, past: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Logits (B, n or kept, V), and what is to be stored: for each shape of plane (P, B, n, H, D)."""
        cache = Past(self.planes, past, masks)
        options = {"logits_to_keep": keep} if self.selects else {}
        output = self.model(
            input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, return_dict=True, **options
        )
        self.kinds = cache.kinds
        stored, first = [], 0
        for shape, count in zip(self.planes.shapes, self.planes.counts, strict=True):
            part = [cache.new[plane] for plane in range(first, first + count)]
            stored.append(torch.stack(part).to(shape.dtype))
            first += count
        return (output.logits.float(), *stored)


def refuse_untraceable(model: PreTrainedModel, parameters: Set[str]) -> None:
    """Raise ValueError for forwards that depend on numbers which a trace would take for constants."""
    if "position_ids" not in parameters:
        raise ValueError("it counts positions itself")
    kinds = str(getattr(model.config.get_text_config(), "rope_parameters", None))
    if "'dynamic'" in kinds or "'longrope'" in kinds:
        raise ValueError("its rotations depend on the length of the text")


@torch.no_grad()
def trace(model: PreTrainedModel, planes: Planes, *, selects: bool) -> Graph:
    """The model's forward as a graph; the model itself stays as it is."""
    explicit = Explicit(widened(model), planes, selects)
    past = tuple(
        torch.zeros(1, PLACES, shape.heads, shape.size, dtype=shape.dtype)
        for shape, count in zip(planes.shapes, planes.counts, strict=True)
        for _ in range(count)
    )
    example: dict[str, Any] = {
        "ids": torch.zeros(1, TOKENS, dtype=torch.int64),
        "positions": torch.arange(PLACES, PLACES + TOKENS)[None],
        "keep": torch.arange(TOKENS),
    }
    explicit(**example, masks=None, past=past)
    kinds = tuple(explicit.kinds)
    example["masks"] = tuple(torch.zeros(1, 1, TOKENS, PLACES + TOKENS) for _ in kinds)
    example["past"] = past
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # every Python number in the model's code is warned about
        traced = torch.jit.trace(explicit, example_kwarg_inputs=example, strict=False, check_trace=False)
    return Graph(traced, example, kinds, selects)


def widened(model: PreTrainedModel) -> PreTrainedModel:
    """The same model in float32, with the attention that can be traced; weights in float32 are shared."""
    shared = {id(each): each for each in (*model.parameters(), *model.buffers()) if each.dtype == torch.float32}
    twin = copy.deepcopy(model, memo=shared).float().eval()
    for module in twin.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation_internal"):
            config._attn_implementation_internal = NAME
    if hasattr(twin, "set_experts_implementation"):
        twin.set_experts_implementation("batched_mm")  # the others loop over the experts that this example chooses
    return twin


AttentionInterface.register(NAME, graph_attention)
AttentionMaskInterface.register(NAME, graph_mask)
