"""The argument through which transformers' functions take the KV cache: `cache` since transformers 5.24,
`past_key_values` before, and in models with custom code. Models like Mamba called it `cache_params`."""

from __future__ import annotations

import inspect
from collections.abc import Set

from transformers.models.llama.modeling_llama import LlamaForCausalLM

CACHE_ARGUMENTS = ("past_key_values", "cache", "cache_params")


def cache_argument(parameters: Set[str]) -> str | None:
    """Which of a forward's parameters takes the KV cache; None: none of them."""
    return next((name for name in CACHE_ARGUMENTS if name in parameters), None)


_LLAMA = cache_argument(inspect.signature(LlamaForCausalLM.forward).parameters.keys())
assert _LLAMA is not None, "transformers' LlamaForCausalLM takes no KV cache"
CACHE_ARGUMENT = _LLAMA  # of the layers and mask functions of the installed transformers
