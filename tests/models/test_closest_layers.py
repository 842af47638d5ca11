"""The dynamic programme of CLaSp: the state it ends with is that of the set it names, and hardly any set of
the same size is closer to the target; the cache is as it was."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch.nn.functional import cosine_similarity
from transformers import LlamaConfig, LlamaForCausalLM

from outpace.core.contracts import Prompt, Want
from outpace.core.tree import TokenTree
from outpace.models.hf.target import HFTarget
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import closest_layers, switching
from tests.tiers import only

PROMPT = torch.tensor([5, 9, 31, 7, 44, 5, 9, 12, 60, 3, 18, 5])
LAYERS = 8
FAMILIES = ["llama", "qwen3", "gemma3_text", "gpt2", "mixtral", "falcon", "gemma2", "deepseek_v3"]
QUICK = ["llama", "gemma3_text", "gpt2"]


def read(target: HFTarget, text):
    """A cache with all tokens of a text, and the outputs of the layers at the last one."""
    cache = target.open(2, 64)
    target.prefill([Prompt(text)], (1,), cache, Want())
    tree, layers = TokenTree.roots(text[-1:]), range(target.num_layers)
    hidden = target.score(tree, (1,), cache, Want(hidden=frozenset(layers))).hidden
    cache.commit(tree, [0], (1,))
    return cache, [hidden[layer][0] for layer in layers]


def closeness(target: HFTarget, without, skipped: SkipSet, text, output) -> float:
    """Cosine of the last layer's output at the last token with the target's, without these layers."""
    cache, last = target.open(2, 64), target.num_layers - 1
    target.prefill([Prompt(text)], (1,), cache, Want())
    slim = without(skipped)
    found = slim.score(TokenTree.roots(text[-1:]), (1,), slim.view(cache), Want(hidden=frozenset([last])))
    return float(cosine_similarity(found.hidden[last][0], output, dim=0))


@pytest.fixture(scope="module")
def residual_net() -> HFTarget:
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, num_hidden_layers=LAYERS, initializer_range=0.3, **shape)
    return HFTarget(LlamaForCausalLM(config).double().eval())


@pytest.mark.slow
def test_it_is_closer_than_other_sets_of_the_same_size(residual_net) -> None:
    size, without = LAYERS // 2, switching(residual_net)
    choose, better, tried = closest_layers(residual_net, size), 0, 0
    total = theirs = 0.0  # one state per cell is kept, so on a single text another set may be closer
    alternate = SkipSet.of_layers(range(1, LAYERS, 2))
    for seed in range(6):
        text = torch.randint(0, 64, (5 + 2 * seed,), generator=torch.Generator().manual_seed(seed))
        cache, outputs = read(residual_net, text)
        found = choose(cache, 1, int(text[-1]), outputs)
        assert len(found.layers) == size and found.attention == found.mlp

        def score(skipped: SkipSet, text=text, outputs=outputs) -> float:
            return closeness(residual_net, without, skipped, text, outputs[-1])

        ours = score(found)
        total, theirs = total + ours, theirs + score(alternate)
        others = [score(SkipSet.of_layers(each)) for each in combinations(range(LAYERS), size)]
        better += sum(each <= ours for each in others)
        tried += len(others)
    assert better / tried >= 0.95 and total > theirs


@pytest.mark.parametrize("name", only(QUICK, FAMILIES))
def test_of_two_layers_the_better_one_is_skipped(name, tiny, float64_throughout) -> None:
    target = HFTarget(tiny(name))
    without, choose = switching(target), closest_layers(target, 1)
    cache, outputs = read(target, PROMPT)
    found = choose(cache, 1, int(PROMPT[-1]), outputs)
    sets = [SkipSet.of_layers([layer]) for layer in (0, 1)]
    assert found == max(sets, key=lambda each: closeness(target, without, each, PROMPT, outputs[-1]))


def test_one_forward_over_one_state_more_than_layers_are_skipped_writes_nothing(residual_net) -> None:
    choose = closest_layers(residual_net, 3)
    cache, outputs = read(residual_net, PROMPT)
    before = [view.clone() for view in cache.views(1, 0, cache.capacity)]
    sizes = list[int]()

    def count(module, inputs, given, output) -> None:
        sizes.append((inputs[0] if inputs else given["hidden_states"]).shape[1])

    hooks = [layer.register_forward_hook(count, with_kwargs=True) for layer in choose.captures.layers]
    choose(cache, 1, int(PROMPT[-1]), outputs)
    for hook in hooks:
        hook.remove()
    assert sizes == [4] * LAYERS
    assert cache.lengths == [0, len(PROMPT)] and cache.tree is None
    for view, old in zip(cache.views(1, 0, cache.capacity), before, strict=True):
        assert torch.equal(view, old)


def test_a_first_token_has_no_entries_before_it(residual_net) -> None:
    cache = residual_net.open(1, 64)
    tree = TokenTree.roots(PROMPT[:1])
    hidden = residual_net.score(tree, (0,), cache, Want(hidden=frozenset(range(LAYERS)))).hidden
    cache.commit(tree, [0], (0,))
    outputs = [hidden[layer][0] for layer in range(LAYERS)]
    assert len(closest_layers(residual_net, 2)(cache, 0, int(PROMPT[0]), outputs).layers) == 2


def test_models_that_score_chains_only_are_refused(tiny) -> None:
    with pytest.warns(UserWarning, match="chains"):
        target = HFTarget(tiny("bloom"))
    with pytest.raises(ValueError, match="BloomForCausalLM scores chains only.*use layerskip"):
        closest_layers(target, 1)


@pytest.mark.parametrize("skipped", [0, LAYERS])
def test_some_layers_are_skipped_and_some_stay(skipped: int, residual_net) -> None:
    with pytest.raises(ValueError, match=f"cannot skip {skipped} of them: use 1 to {LAYERS - 1}"):
        closest_layers(residual_net, skipped)


@pytest.mark.slow
def test_a_compiled_model_is_refused(tiny) -> None:
    with pytest.raises(ValueError, match="compiled with OpenVINO cannot skip other layers"):
        switching(HFTarget(tiny("llama").float(), compile=True))
