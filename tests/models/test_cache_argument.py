"""The KV cache is passed under the name that a model's forward has for it, whatever transformers calls it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from outpace.core.contracts import Prompt, Want
from outpace.core.tree import TokenTree
from outpace.models.cache_argument import CACHE_ARGUMENT
from outpace.models.hf.target import HFTarget
from tests.tiers import slow


class OlderName(LlamaForCausalLM):
    def forward(
        self, input_ids: Any = None, position_ids: Any = None, past_key_values: Any = None, **rest: Any
    ) -> Any:
        return super().forward(
            input_ids=input_ids, position_ids=position_ids, **{CACHE_ARGUMENT: past_key_values}, **rest
        )


class NewerName(LlamaForCausalLM):
    def forward(self, input_ids: Any = None, position_ids: Any = None, cache: Any = None, **rest: Any) -> Any:
        return super().forward(
            input_ids=input_ids, position_ids=position_ids, **{CACHE_ARGUMENT: cache}, **rest
        )


class NoCache(LlamaForCausalLM):
    def forward(self, input_ids: Any = None, position_ids: Any = None, **rest: Any) -> Any:
        return super().forward(input_ids=input_ids, position_ids=position_ids, **rest)


def logits(model: LlamaForCausalLM, compile: bool) -> torch.Tensor:
    """Of the last token after a prompt in the cache."""
    target = HFTarget(model, compile=compile)
    cache = target.open(1, 16)
    target.prefill([Prompt(torch.tensor([5, 6, 7, 8]))], (0,), cache, Want())
    return target.score(TokenTree.roots(torch.tensor([8])), (0,), cache).logits


@pytest.mark.parametrize("kind", [OlderName, NewerName])
@pytest.mark.parametrize("compile", [False, slow(True)])
def test_either_name_is_used(tiny, kind, compile):
    model = tiny("llama").float()
    expected = logits(model, compile)
    model.__class__ = kind
    assert torch.equal(logits(model, compile), expected)


def test_a_model_without_a_cache_is_refused(tiny):
    model = tiny("llama")
    model.__class__ = NoCache
    with pytest.raises(ValueError, match="takes no key-value cache"):
        HFTarget(model)
