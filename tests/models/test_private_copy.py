"""Decoding does not change the user's model: its outputs, modes, hooks, and other threads that use it."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from types import MethodType

import pytest
import torch

from outpace.core.contracts import Prompt, Want
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.recipes import get

PROMPT = torch.tensor([5, 6, 7, 8, 5, 6, 7, 8, 5, 6])


def state(model):
    """Everything of a model's modules that decoding might change."""
    return [
        (
            name,
            module.training,
            dict(module._forward_hooks),
            dict(module._forward_pre_hooks),
            vars(module).keys(),
        )
        for name, module in model.named_modules()
    ]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gptj", "bloom", "gpt_oss"])
@pytest.mark.filterwarnings("ignore:.*chains")
def test_a_users_model_is_not_changed(name, tiny):
    model = tiny(name).float()  # a masked row is NaN in float64: transformers casts its softmax
    model.train()
    model.base_model.eval()
    before, attention = state(model), model.config._attn_implementation
    prompt = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12, 13], [0, 0, 5, 6, 7, 8, 9, 10, 11]])
    options = {"attention_mask": (prompt != 0).long(), "max_new_tokens": 8, "do_sample": False}
    text = model.generate(prompt, **options)
    target = HFTarget(model)
    target.prefill([Prompt(PROMPT)], (0,), target.open(1, 32), Want(hidden=frozenset({-1})))
    assert state(model) == before and model.config._attn_implementation == attention
    assert torch.equal(model.generate(prompt, **options), text)


def test_weights_are_shared_and_updates_are_seen(tiny):
    model = tiny("llama")
    target = HFTarget(model)
    ours = dict(target.forward.model.named_parameters())
    assert all(ours[name] is parameter for name, parameter in model.named_parameters())
    cache = target.open(1, 8)
    before = target.score(TokenTree.roots(PROMPT[:1]), (0,), cache).logits
    cache.commit(TokenTree.roots(PROMPT[:1]), [-1], (0,))
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    assert torch.allclose(target.score(TokenTree.roots(PROMPT[:1]), (0,), cache).logits, 2 * before)


def test_a_forward_that_was_wrapped_runs_the_copys_modules(tiny):
    """accelerate wraps the forward of a module in this way."""
    model = tiny("llama")
    calls = []

    def wrapped(module, *inputs, **options):
        calls.append(module)
        return module._old_forward(*inputs, **options)

    layer = model.model.layers[0]
    layer._old_forward = layer.forward
    layer.forward = functools.update_wrapper(functools.partial(wrapped, layer), layer._old_forward)
    target = HFTarget(model)
    copied = target.forward.model.model.layers[0]
    assert set(calls) == {copied} and copied is not layer
    assert isinstance(copied._old_forward, MethodType) and copied._old_forward.__self__ is copied


@pytest.mark.slow
def test_threads_share_a_target_and_the_users_own_forwards_stay_right(tiny):
    model = tiny("llama")
    target, draft = HFTarget(model), HFTarget(tiny("llama"))
    sampling = [SamplingParams(max_tokens=24), SamplingParams(temperature=1.0, max_tokens=24, seed=3)]
    prompts = [PROMPT.tolist(), PROMPT[:4].tolist()]
    logits = model(PROMPT[None]).logits.detach()

    def decode(method):
        options = {"draft": draft} if method == "speculative-sampling" else {}
        return texts(get(method).build(target, **options), prompts, sampling)

    def own(_):
        return torch.equal(model(PROMPT[None]).logits, logits)

    methods = ["speculative-sampling", "prompt-lookup", "autoregressive", "token-recycling"]
    alone = [decode(method) for method in methods]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(decode, methods * 3)
        right = pool.map(own, range(40))
        assert list(found) == alone * 3
        assert all(right)
