"""Attention over a paged KV cache as one operation: its definition for tracing, and its conversion to
OpenVINO.

The operation writes new keys and values into the cache in place. Every token attends to the cache entries of
its sequence and to the tokens of the same inference that the bias allows (without a bias: the preceding
tokens), all within the sliding window (0: no window).

Letters: N tokens of all sequences, H query heads, D head size.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor

BLOCK_SIZE = 32  # cache positions of a block (page): the only size that OpenVINO supports on a CPU
# example shapes and dtypes of the inputs that describe sequences, blocks and the mask among new tokens:
# lengths (per sequence, tokens already in the cache), begins (index of its first new token), blocks (indices
# of the blocks of all sequences), block begins (index of a sequence's first entry in them), longest (largest
# number of tokens of a sequence), bias (mask among new tokens), bias begins (a sequence's first entry in it)
PAGED_INPUTS = (*[((1,), torch.int32)] * 4, ((), torch.int32), ((1,), torch.uint8), ((1,), torch.int32))
NAME = "outpace::paged_attention"

_library = torch.library.Library("outpace", "DEF")
_library.define(
    "paged_attention(Tensor query, Tensor key, Tensor value, Tensor keys, Tensor values, Tensor lengths, "
    "Tensor begins, Tensor blocks, Tensor block_begins, Tensor longest, Tensor bias, "
    "Tensor bias_begins, Tensor sinks, "
    "float scale, int window, int heads, int key_size, int value_size) -> Tensor"
)


def _shapes_alone(query: Tensor, key: Tensor, *rest: Any) -> Tensor:  # (N, H*D)
    """The operation's implementation for tracing: zeros of the output's shape."""
    *_, heads, key_size, value_size = rest
    return query.new_zeros(len(query), query.shape[1] // key_size * value_size)


_library.impl("paged_attention", _shapes_alone, "CPU")


def conversion(ov: Any) -> Any:
    """The extension with which OpenVINO's front end converts the traced operation to its own. `ov`: the
    openvino module."""
    from openvino.frontend.pytorch import ConversionExtension

    ops, node = ov.opset13, ov.op._PagedAttentionExtension  # OpenVINO's operation has no public name

    def constant(value: Any, kind: Any = numpy.int32) -> Any:
        return ops.constant(numpy.array(value, kind)).output(0)

    def convert(context: Any) -> list[Any]:
        given = [context.get_input(index) for index in range(5 + len(PAGED_INPUTS) + 1)]
        scale, window, heads, key_size, value_size = (
            context.get_values_from_const_input(len(given) + index) for index in range(5)
        )
        attention, paged_inputs, sinks = given[:5], given[5:-1], given[-1]
        none, nothing = constant([], numpy.float32), constant([])
        made = node(
            [
                *attention,
                *paged_inputs[:4],
                constant(scale, numpy.float32),
                constant(window),
                none,  # no ALiBi slopes
                paged_inputs[4],
                *(nothing, nothing, nothing, none),  # no scores are returned, no keys rotated
                *(none, constant(0), constant(0)),  # no sparse attention: no block is skipped
                sinks,
                *(constant(0), nothing, nothing, nothing, nothing),  # no cache eviction; all tokens are text
                *paged_inputs[5:],
            ]
        )
        facts = made.get_rt_info()
        facts["num_k_heads"] = facts["num_v_heads"] = heads
        facts["k_head_size"], facts["v_head_size"] = key_size, value_size
        return [made.output(0)]

    return ConversionExtension(NAME, convert)
