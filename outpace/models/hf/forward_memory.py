"""An upper estimate of the memory that a forward needs besides weights and KV cache, from the model's
configuration."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.core.contracts import Target
from outpace.models.forward.kv_cache import MAX_SLICED_MASK
from outpace.models.hf.reshaped import mlp_size
from outpace.models.hf.target import HFTarget
from outpace.models.layer_config import last_layer

# number of temporary tensors of a layer, by their width: hidden size, MLP size, size of all queries, keys and
# values
HIDDEN, MLP, PROJECTED = 6, 3, 4
MASK_BYTES = 6  # per token and key: a bool, and the number that attention converts it to


@dataclass(frozen=True)
class ForwardMemory:
    """What the forwards of one model allocate besides weights and KV cache, in bytes."""

    token: int  # temporary tensors of the largest layer, per token
    logits: int  # logits of one node
    probs: int  # the same in the dtype of probabilities, at least float32
    pair: int  # attention masks, per token and key
    position: int  # tables of position ids and of the causal mask, per cache position of the longest text
    copied: float  # share of a slot's KV memory that exists twice while the slot grows

    @staticmethod
    def of(target: Target) -> ForwardMemory:
        """The estimate for this model; for a model outside of transformers only its logits, in float64."""
        if not isinstance(target, HFTarget):
            return ForwardMemory(0, 8 * target.vocab, 8 * target.vocab, 0, 0, 1.0)
        # where layers differ, the last one has full attention, whose heads are the largest
        config, size = last_layer(target.model.config.get_text_config()), target.model.dtype.itemsize
        hidden, heads = (
            config.hidden_size,
            getattr(config, "num_attention_heads", 0),
        )  # 0: only recurrent layers
        head_size = getattr(config, "head_dim", None) or hidden // max(1, heads)
        keys = getattr(config, "num_key_value_heads", None) or heads
        mlp = mlp_size(config)
        wide = max(4, size)  # norms compute in float32
        token = HIDDEN * hidden * wide + (MLP * mlp + PROJECTED * (heads + 2 * keys) * head_size) * size
        return ForwardMemory(
            token,
            target.vocab * size,
            target.vocab * wide,
            MASK_BYTES,
            # masks of short chains are slices of a table with this many rows; position ids are int64
            MAX_SLICED_MASK + 8,
            target.forward.planes.divided().largest_share,
        )
