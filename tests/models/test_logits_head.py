"""The map from the LM head's input to the logits is the model's own, scale and cap included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outpace.core.contracts import Want
from outpace.core.tree import TokenTree
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.hf.logits_head import ScaledHead
from outpace.models.hf.target import HFTarget
from outpace.models.slim.exit_head import ExitHead

SCALED = ("granite", "cohere2", "gemma2")


def logits_and_states(target: HFTarget) -> tuple[Tensor, Tensor]:  # (3, V), (3, D)
    """The target's logits of three tokens, and the inputs of its LM head."""
    cache = target.open(3, 8)
    tree = TokenTree.roots(torch.tensor([7, 8, 9]))
    scores = target.score(tree, (0, 1, 2), cache, Want(hidden=frozenset({-1})))
    assert scores.logits is not None
    return scores.logits, scores.hidden[-1]


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi3", "opt", *SCALED])
def test_the_head_of_a_target_gives_its_logits(name, tiny):
    target = HFTarget(tiny(name))
    logits, states = logits_and_states(target)
    assert torch.allclose(target.head(states), logits, atol=1e-6)
    assert isinstance(target.head, ScaledHead) == (name in SCALED)
    assert target.head.weight is target.model.get_output_embeddings().weight
    assert target.head is target.head
    if name in SCALED:  # the LM head alone has another distribution
        alone = target.model.get_output_embeddings()(states).softmax(-1)
        assert (alone - logits.softmax(-1)).abs().sum(-1).min() > 0.05


@pytest.mark.parametrize("name", SCALED)
def test_a_draft_head_with_the_targets_hidden_states_has_its_distribution(name, tiny):
    target = HFTarget(tiny(name))
    logits, states = logits_and_states(target)
    head = untrained_eagle(target)
    assert torch.allclose(head.lm_head(states).softmax(-1), logits.softmax(-1), atol=1e-6)


@pytest.mark.parametrize("name", ["llama", *SCALED])
def test_an_exit_after_the_last_layer_has_the_models_logits(name, tiny):
    model = tiny(name)
    target, head = HFTarget(model), ExitHead(model)
    cache = target.open(3, 8)
    last = model.config.num_hidden_layers - 1
    tree = TokenTree.roots(torch.tensor([7, 8, 9]))
    scores = target.score(tree, (0, 1, 2), cache, Want(hidden=frozenset({last})))
    states = scores.hidden[last][None]
    assert torch.allclose(head(states)[0], scores.logits, atol=1e-6)
    assert torch.allclose(head.lm_head(head.inputs(states))[0], scores.logits, atol=1e-6)


def test_what_is_not_a_factor_or_a_cap_is_refused(tiny):
    model = tiny("llama")
    model.register_forward_hook(lambda module, inputs, output: setattr(output, "logits", output.logits**2))
    with pytest.raises(ValueError, match="LlamaForCausalLM does to its logits behind the LM head is not"):
        _ = HFTarget(model).head


def test_an_exit_head_runs_a_model_that_projects_before_its_lm_head(tiny):
    model = tiny("opt", word_embed_proj_dim=24)
    target, head = HFTarget(model), ExitHead(model)
    cache, last = target.open(3, 8), model.config.num_hidden_layers - 1
    tree = TokenTree.roots(torch.tensor([7, 8, 9]))
    scores = target.score(tree, (0, 1, 2), cache, Want(hidden=frozenset({last})))
    assert torch.allclose(head(scores.hidden[last][None])[0], scores.logits, atol=1e-6)
