"""Layer outputs, the LM head's input and attention weights are those transformers itself reports."""

from __future__ import annotations

import pytest
import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from outpace.core.contracts import Prompt, Want
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts as texts_of
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.self_speculation.layerskip import layerskip

EXACT = 1e-9
SLOTS = (2, 0)
TREE = Forest.of([-1, -1, 0, 1, 2, 2, 1, 4, 6], 2)


@pytest.mark.parametrize(
    "name",
    ["llama", "mistral", "gemma3_text", "gemma2", "gpt_oss", "deepseek_v3", "gpt2", "opt", "gptj", "falcon"],
)
def test_taps_are_what_transformers_reports(name, tiny, reference, float64_throughout):
    model = tiny(name)
    fresh = reference(model)
    fresh.model.config._attn_implementation = "eager"  # reports its attention weights
    target = HFTarget(model)
    generator = torch.Generator().manual_seed(2)
    texts = [torch.randint(3, 61, (length,), generator=generator) for length in (12, 5)]
    tokens = torch.randint(3, 61, (len(TREE),), generator=generator)
    tokens[:2] = torch.stack([text[-1] for text in texts])
    cache = target.open(3, 64)
    want = Want(hidden=frozenset({0, -1}), attention=frozenset({0, 1}))
    prompt, found = target.prefill([Prompt(text) for text in texts], SLOTS, cache, want)
    assert found.logits is None
    scores = target.score(TokenTree(tokens, TREE), SLOTS, cache, want)
    for tree, got, is_prompt in ((prompt, found, True), (TokenTree(tokens, TREE), scores, False)):
        for node in range(len(tree)):
            path, row = tree.forest.path(node), tree.forest.rows[node]
            before = texts[row][:0] if is_prompt else texts[row][:-1]
            expected = fresh(
                torch.cat((before, tree.tokens[path])), output_hidden_states=True, output_attentions=True
            )
            assert (got.hidden[0][node] - expected.hidden_states[1][0, -1]).abs().max() < EXACT
            assert (got.hidden[-1][node] - expected.hidden_states[-1][0, -1]).abs().max() < EXACT
            for layer in (0, 1):
                weights = expected.attentions[layer][0, :, -1]
                assert got.attention[layer][node].shape == weights.shape
                assert (got.attention[layer][node] - weights).abs().max() < EXACT


def test_no_hooks_without_requested_outputs(tiny):
    model = tiny("llama")
    target = HFTarget(model)
    cache = target.open(1, 16)
    target.prefill([Prompt(torch.tensor([5, 6, 7]))], (0,), cache, Want(hidden=frozenset({0, 1, -1})))
    scores = target.score(TokenTree.roots(torch.tensor([7])), (0,), cache)
    assert scores.hidden == {} and scores.attention == {}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_layer_that_is_not_there_is_refused(tiny):
    target = HFTarget(tiny("llama"))
    with pytest.raises(ValueError, match="there is no layer 7: layers are 0 to 1"):
        target.score(
            TokenTree.roots(torch.tensor([7])), (0,), target.open(1, 16), Want(hidden=frozenset({7}))
        )


def test_the_head_multiplies_nothing_while_a_prompt_is_read(tiny):
    target = HFTarget(tiny("llama"))
    rows = []
    target.forward.model.lm_head.register_forward_hook(
        lambda module, inputs, output: rows.append(output.shape[1])
    )
    cache = target.open(1, 16)
    target.prefill([Prompt(torch.tensor([5, 6, 7, 8]))], (0,), cache, Want(hidden=frozenset({-1})))
    target.score(TokenTree.roots(torch.tensor([8])), (0,), cache, gap=[torch.tensor([8, 9])])
    assert rows == [0, 1]


def test_layers_of_a_multimodal_model_are_those_that_generate_text() -> None:
    """The vision model comes first and has more layers."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    vision = CLIPVisionConfig(**sizes, num_hidden_layers=5, image_size=16, patch_size=8)
    text = LlamaConfig(**sizes, vocab_size=40, num_hidden_layers=3, num_key_value_heads=2)
    torch.manual_seed(0)
    target = HFTarget(
        LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text)).eval()
    )
    assert target.num_layers == 3
    prompt, sampling = [[5, 9, 31, 7]], [SamplingParams(0.0, max_tokens=6)]
    plain = texts_of(autoregressive.build(target), prompt, sampling)
    assert texts_of(layerskip.build(target, exit_layer=2, depth=3), prompt, sampling) == plain
