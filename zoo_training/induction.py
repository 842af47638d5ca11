"""Initialization of induction heads: attention heads in the first two layers that copy earlier text.

To continue "a b ... a" with "b", a head of the first layer writes the previous token's identity into each
position, and a head of a later layer attends to the position whose previous token equals the current one.
Small models need millions of training tokens to learn this. The weights are constructed from RoPE and from
the embedding of `counted_embedding`; they are not frozen.
"""

import torch
from transformers import LlamaForCausalLM

from zoo_training.embedding import CONSTANT, SCALE, Layout

NEIGHBOUR = 14.0  # attention score of the previous token minus that of its neighbors (first layer)
MATCH = 2.6  # scale of queries and keys that compare token identities (second layer)
PRIOR = 2.0  # weight of the log frequency in the prediction, in units of SCALE
FINAL = 0.035  # standard deviation of the final norm's output, which the tied embedding maps to logits
CARRY = 2.0  # weight of the bigram statistics in the prediction, in units of SCALE
COPY = 6.0  # weight of the copied token in the prediction, in units of SCALE


@torch.no_grad()
def install_induction(model: LlamaForCausalLM) -> None:
    """Write induction heads, and heads for bigram statistics, into a model with a `counted_embedding`."""
    config = model.config
    layout, size = Layout(config.hidden_size), config.hidden_size // config.num_attention_heads
    weights = dict(model.named_parameters())
    # keeps the logits small although the tied embedding is large
    weights["model.norm.weight"].fill_(FINAL / SCALE)
    frequencies = 10_000.0 ** (-torch.arange(size // 2) * 2 / size)
    fast = size * 3 // 16  # number of highest RoPE frequencies, which separate neighboring positions
    few = size * 7 // 32  # number of lowest RoPE frequencies, almost constant over a few hundred tokens
    count = config.num_key_value_heads or config.num_attention_heads
    group = config.num_attention_heads // count

    def block(layer: int, name: str) -> torch.Tensor:
        return weights[f"model.layers.{layer}.self_attn.{name}_proj.weight"]

    # First layer: a constant query and keys rotated by one further position, so that the score is largest at
    # the previous token.
    turned = torch.zeros(size)
    turned[:fast] = frequencies[:fast].cos()
    turned[size // 2 : size // 2 + fast] = frequencies[:fast].sin()
    plain = torch.zeros(size)
    plain[:fast] = 1.0
    gap = (1 - frequencies[:fast].cos()).sum()
    after_norm = CONSTANT / ((2 * layout.half + CONSTANT**2) / config.hidden_size) ** 0.5
    strength = (NEIGHBOUR * size**0.5 / gap) ** 0.5 / after_norm
    block(0, "q")[:size] = 0
    block(0, "q")[:size, layout.constant] = strength * plain
    block(0, "k")[:size] = 0
    block(0, "k")[:size, layout.constant] = strength * turned
    slow = [
        dimension for half in (0, size // 2) for dimension in range(half + size // 2 - few, half + size // 2)
    ]
    head_dims = len(slow)  # number of dimensions in which a head compares two tokens
    heads = min(count, (size - 1) // head_dims, (layout.free.stop - layout.free.start) // head_dims)
    mixed = torch.nn.init.orthogonal_(torch.empty(heads * head_dims, layout.half))
    block(0, "v")[:size] = 0
    block(0, "v")[: heads * head_dims, layout.as_context] = mixed
    noted = torch.arange(layout.free.start, layout.free.start + heads * head_dims)
    block(0, "o")[noted, torch.arange(heads * head_dims)] = SCALE
    block(0, "v")[size - 1, layout.constant] = 1 / after_norm
    block(0, "o")[layout.prior, size - 1] = PRIOR * SCALE

    # Unused heads attend to the current token and copy its context factor to the prediction dimensions, for
    # the bigram statistics.
    spare = [(0, head) for head in range(1, count)]
    spare += [(layer, head) for layer in range(2, config.num_hidden_layers) for head in range(count)]
    for turn, (layer, head) in enumerate(spare[: -(-layout.half // size)]):
        first = turn * size
        part = torch.arange(first, min(first + size, layout.half))
        query, key, value = head * group * size, head * size, head * size
        for name, start in (("q", query), ("k", key)):
            block(layer, name)[start : start + size] = 0
            block(layer, name)[start : start + size, layout.constant] = strength * plain
        block(layer, "v")[value : value + size] = 0
        block(layer, "v")[value + torch.arange(len(part)), part] = 1.0
        block(layer, "o")[layout.as_target.start + part, query + torch.arange(len(part))] = CARRY * SCALE

    # Second layer: queries from the current token, keys from the previous-token identity written by the first
    # layer; the values raise the prediction of the attended token.
    for head in range(heads):
        part = slice(head * head_dims, (head + 1) * head_dims)
        query = block(1, "q")[head * group * size : (head * group + 1) * size]
        key = block(1, "k")[head * size : (head + 1) * size]
        value = block(1, "v")[head * size : (head + 1) * size]
        query.zero_()
        key.zero_()
        value.zero_()
        query[slow, layout.as_context] = MATCH * mixed[part]
        key[slow, noted[part]] = MATCH
        first = layout.as_target.start + head * size
        carried = torch.arange(first, min(first + size, layout.as_target.stop))
        value[torch.arange(len(carried)), carried] = 1.0
        block(1, "o")[carried, head * group * size + torch.arange(len(carried))] = COPY * SCALE
