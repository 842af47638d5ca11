"""A draft model with its middle layers in groups computes below the roots of drafts what is written out here,
and the model's own logits everywhere else."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outpace.core.contracts import Prompt, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.hf.target import HFTarget
from outpace.models.slim.grouped_layers import GroupedForward, grouped, groups_of
from outpace.models.table import TableTarget
from tests.models.conftest import TINY
from tests.tiers import only, slow

EXACT = 1e-9
LAYERS = 7
PROMPTS = [torch.tensor(text) for text in ([5, 9, 31, 7, 44, 5, 9, 12, 60, 3, 18, 5], [8, 3, 20])]
SLOTS = (2, 0)
# below the two roots: a tree of the first row, and a chain of the second
FOREST = Forest.of([-1, -1, 0, 0, 1, 2, 4, 2], 2)
TOKENS = torch.tensor([11, 20, 33, 4, 50, 17])
NORMS = {"gpt2": "ln_1"}
FAMILIES = [
    *("llama", "gemma3_text", "gpt2", "qwen3", "mixtral", "granite", "gemma2", "deepseek_v3", "gpt_oss"),
    *("phi3", "llama4_text", "stablelm"),
]


def deeper(name: str, num_layers: int) -> dict[str, Any]:
    """The options of a model of a family with more layers."""
    kinds = ("layer_types", "no_rope_layers")
    lists = {key: [*TINY[name][key] * num_layers][:num_layers] for key in kinds if key in TINY[name]}
    return {"num_hidden_layers": num_layers, **lists}


def drafted(model: HFTarget) -> tuple[TokenTree, Tensor]:
    """Logits at the nodes of the tree; roots, first level and other nodes are read in a forward each."""
    cache = model.open(3, 64)
    gaps = [text[3:-1] if len(text) > 4 else text[:0] for text in PROMPTS]
    before = [Prompt(text[: len(text) - len(gap)]) for text, gap in zip(PROMPTS, gaps, strict=True)]
    model.prefill(before, SLOTS, cache, Want())
    tokens = torch.cat([torch.stack([text[-1] for text in PROMPTS]), TOKENS])
    logits = []
    for size in (2, 5, len(FOREST)):
        tree = TokenTree(tokens[:size], Forest.of(FOREST.parents[:size], 2))
        found = model.score(tree, SLOTS, cache, gap=gaps if size == 2 else None).logits
        assert found is not None
        logits.append(found)
    return tree, torch.cat(logits)


def paths(tree: TokenTree) -> list[tuple[list[int], Tensor]]:
    """The nodes from each root to a leaf, and the text up to the leaf."""
    leaves = [node for node in range(len(FOREST)) if not FOREST.children[node]]
    found = [(FOREST.path(leaf), PROMPTS[FOREST.rows[leaf]][:-1]) for leaf in leaves]
    return [(path, torch.cat((text, tree.tokens[path]))) for path, text in found]


@torch.no_grad()
def written_out(model: Any, text: Tensor, begin: int, size: int) -> Tensor:
    """Logits of a Llama model after the tokens from `begin` on, which run through its layers in groups."""
    ordinary = model(text[None], use_cache=False, output_hidden_states=True).hidden_states
    states = model.model.embed_tokens(text[None, begin:])
    angles = model.model.rotary_emb(states, position_ids=torch.arange(len(text))[None])
    mask = torch.full((len(text), len(text)), float("-inf"), dtype=states.dtype).triu(1)[None, None]
    first = {layer: group[0] for group in groups_of(LAYERS, size, "") for layer in group}
    for index, layer in enumerate(model.model.layers):
        if first.get(index, index) == index:
            read = states
        seen = torch.cat((ordinary[index][:, :begin], read), 1)
        attended = layer.self_attn(
            hidden_states=layer.input_layernorm(seen), position_embeddings=angles, attention_mask=mask
        )[0]
        states = states + attended[:, begin:]
        states = states + layer.mlp(layer.post_attention_layernorm(states))
    return model.lm_head(model.model.norm(states))[0]


@pytest.mark.parametrize("size", [2, 4, slow(3), slow(5)])
def test_below_a_root_attention_reads_the_input_of_its_group(tiny: Any, reference: Any, size: int) -> None:
    model = tiny("llama", num_hidden_layers=LAYERS)
    fresh = reference(model).model
    tree, logits = drafted(grouped(HFTarget(model), size))
    for path, text in paths(tree):
        whole = fresh(text[None], use_cache=False).logits[0, -len(path) :].detach()
        below = written_out(fresh, text, len(text) - len(path) + 1, size)
        assert (logits[path[:1]] - whole[:1]).abs().max() <= EXACT, "the root runs through the model as it is"
        assert (logits[path[1:]] - below).abs().max() <= EXACT
        assert (below - whole[1:]).abs().max() > 0.01, "the groups must matter"


def test_groups_of_one_layer_are_the_model_bit_by_bit(tiny: Any) -> None:
    model = HFTarget(tiny("llama", num_hidden_layers=LAYERS))
    whole = drafted(model)[1]
    assert torch.equal(drafted(grouped(model, 1))[1], whole)
    hooked = grouped(model, 2)
    hooked.reader._below = GroupedForward(model.forward, [[layer] for layer in range(LAYERS)])
    assert torch.equal(drafted(hooked)[1], whole)


def through_hooks(model: nn.Module, text: Tensor, begin: int, size: int, norm: str) -> Tensor:
    """Logits of a model after the tokens from `begin` on, whose attention reads the group's input."""
    layers = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    hooks, kept = [], dict[int, Tensor]()
    for group in groups_of(len(layers), size, ""):
        for index in group:

            def replace(module: nn.Module, inputs: Any, index: int = index, first: int = group[0]) -> Any:
                kept[index] = inputs[0]
                return (torch.cat((inputs[0][:, :begin], kept[first][:, begin:]), 1),)

            hooks.append(getattr(layers[index], norm).register_forward_pre_hook(replace))
    with torch.no_grad():
        logits = model(text[None], use_cache=False).logits[0, begin:]
    for hook in hooks:
        hook.remove()
    return logits


@pytest.mark.parametrize("name", only(["gemma3_text", "gpt2"], FAMILIES))
def test_models_with_a_norm_before_attention_run_in_groups(
    name: str, tiny: Any, reference: Any, float64_throughout: None
) -> None:
    model = tiny(name, **deeper(name, 5))
    fresh = reference(model).model
    tree, logits = drafted(grouped(HFTarget(model), 3))
    for path, text in paths(tree):
        there = through_hooks(fresh, text, len(text) - len(path) + 1, 3, NORMS.get(name, "input_layernorm"))
        assert (logits[path[1:]] - there).abs().max() <= EXACT


def test_the_model_itself_and_its_forwards_stay_as_they_are(tiny: Any) -> None:
    model = HFTarget(tiny("llama", num_hidden_layers=4))
    before = drafted(model)[1]
    hooks = [len(module._forward_pre_hooks) for module in model.model.modules()]
    made = grouped(model, 2)
    assert not torch.equal(drafted(made)[1], before)
    assert torch.equal(drafted(model)[1], before)
    assert [len(module._forward_pre_hooks) for module in model.model.modules()] == hooks
    cache = made.open(1, 8)
    assert cache in model.caches and grouped(model, 2) is made, "its memory counts as the draft model's"


def wrapped(model: Any) -> HFTarget:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return HFTarget(model)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("olmo2", "not a norm, attention, a norm and an MLP"),  # norms behind attention and MLP
        ("gptj", "not a norm, attention, a norm and an MLP"),  # attention and MLP side by side
        slow("gpt_neox", "not a norm, attention, a norm and an MLP"),
        slow("cohere2", "not a norm, attention, a norm and an MLP"),
        slow("falcon", "not a norm, attention, a norm and an MLP"),
        slow("bloom", "not a norm, attention, a norm and an MLP"),
        slow("opt", "not a norm, attention, a norm and an MLP"),
        (
            "qwen3_5_text",
            "has recurrent layers, which cannot be grouped: use a draft model",
        ),
    ],
)
def test_models_of_another_form_are_refused(name: str, reason: str, tiny: Any) -> None:
    with pytest.raises(ValueError, match=reason):
        grouped(wrapped(tiny(name, **deeper(name, 4))), 2)


def test_models_that_cannot_be_grouped_are_refused(tiny: Any) -> None:
    model = HFTarget(tiny("llama"))
    with pytest.raises(ValueError, match="LlamaForCausalLM has 2 layers, and the first and the last are"):
        grouped(model, 4)
    with pytest.raises(ValueError, match="group_size is 0: use 1 or more layers"):
        grouped(model, 0)
    table = TableTarget(5)
    table.num_layers = 3
    with pytest.raises(ValueError, match="TableTarget has 3 layers"):
        grouped(table, 2)
    compiled = copy.copy(model)
    compiled.reader = copy.copy(model.reader)
    with pytest.raises(ValueError, match="cannot be grouped in compiled forwards: load the draft model"):
        grouped(compiled, 2)
    assert grouped(model, 1).reader is model.reader
