"""Scores of a tree are those of separate forwards over each path, whatever the architecture."""

from __future__ import annotations

import random
import warnings
from functools import partial

import pytest
import torch

from outpace.core.contracts import Prompt, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.hf.target import HFTarget
from tests.models.conftest import SHARED_KEYS

SLOTS = (4, 0, 2)
TREES = [
    # parents below the three roots; rows interleave, siblings 3 and 4 are given the same token
    [0, 0, 1, 3, 3, 2, 4, 5, 8, 8, 7],
    [1, 0, 2, 2, 3, 3, 5, 6, 4],
    [0, 1, 3, 4, 5, 6, 2, 7, 7],
]
CHAINS = [[0, 3, 1, 5, 2, 4], [0, 3, 4, 2], [1, 3, 0, 5]]
EXACT = 1e-9


def follow(name, tiny, reference, trees):
    """The largest difference over three committed trees of ragged rows: one read in two calls, one after a
    gap."""
    model = tiny(name)
    fresh = reference(model)
    generator = torch.Generator().manual_seed(1)
    choice = random.Random(1)
    target = HFTarget(model)
    texts = [torch.randint(3, 61, (length,), generator=generator) for length in (13, 3, 21)]
    cache = target.open(5, 64)
    target.prefill([Prompt(text) for text in texts], SLOTS, cache, Want())
    worst, spread = 0.0, 0.0
    for turn, below in enumerate(trees):
        forest = Forest.of([-1, -1, -1, *below], 3)
        tokens = torch.randint(3, 61, (len(forest),), generator=generator)
        gap = None
        if turn == 2:
            gap = [torch.randint(3, 61, (length,), generator=generator) for length in (2, 0, 7)]
            texts = [
                torch.cat((text, more, torch.tensor([5]))) if len(more) else text
                for text, more in zip(texts, gap, strict=True)
            ]
            gap = [text[cache.lengths[slot] : -1] for text, slot in zip(texts, SLOTS, strict=True)]
        tokens[:3] = torch.stack([text[-1] for text in texts])
        tokens[4] = tokens[3]
        tree = TokenTree(tokens, forest)
        if turn == 1:
            start = TokenTree(tokens[:6], Forest.of(forest.parents[:6], 3))
            parts = [target.score(start, SLOTS, cache), target.score(tree, SLOTS, cache)]
            assert [part.first for part in parts] == [0, 6]
            logits = torch.cat([part.logits for part in parts])
        else:
            logits = target.score(tree, SLOTS, cache, gap=gap).logits
        for leaf in (node for node in range(len(forest)) if not forest.children[node]):
            path = forest.path(leaf)
            text = torch.cat((texts[forest.rows[leaf]][:-1], tokens[path]))
            expected = fresh(text).logits[0, -len(path) :]
            worst = max(worst, float((logits[path] - expected).abs().max()))
            spread = max(spread, float(expected.std()))
        leaves = [choice.choice(nodes) for nodes in forest.nodes]
        cache.commit(tree, leaves, SLOTS)
        texts = [
            torch.cat((text[:-1], tokens[forest.path(leaf)], torch.randint(3, 61, (1,), generator=generator)))
            for text, leaf in zip(texts, leaves, strict=True)
        ]
        assert [cache.lengths[slot] for slot in SLOTS] == [len(text) - 1 for text in texts]
    assert spread > 0.1, "a model that ignores what it reads shows nothing"
    return worst


@pytest.mark.parametrize(
    "name",
    [
        *(
            "llama",
            "qwen2",
            "qwen3",
            "qwen3_moe",
            "mistral",
            "mixtral",
            "gemma3_text",
            "phi3",
            "olmo2",
            "smollm3",
        ),
        *("granite", "cohere2", "llama4_text", "deepseek_v3", "gpt2", "gpt_neox", "opt"),
        *(
            "gemma3n_text",
            "gemma4_text",
            "jetmoe",
            "stablelm",
        ),  # shared keys, two head sizes, repeated queries
        *(
            "gemma2",
            "gpt_oss",
            "gptj",
            "falcon",
        ),  # these have no fused attention, or none that does all they do
    ],
)
def test_tree_scores_are_those_of_separate_paths(name, tiny, reference, float64_throughout):
    worst = follow(name, tiny, reference, TREES)
    print(f"{name} {worst:.1e}")
    assert worst <= EXACT


def test_layers_may_read_the_keys_of_other_layers_of_two_sizes(tiny, reference, float64_throughout):
    """As in the smaller models of Gemma 4, which slice tensors of masks before these layers."""
    assert follow("gemma4_text", partial(tiny, **SHARED_KEYS), reference, TREES) <= EXACT


@pytest.mark.parametrize("name", ["bloom", "mpt", "gpt_neo", "bart"])
def test_models_that_attend_by_cache_slot_score_chains_only_and_warn_once(
    name, tiny, reference, float64_throughout
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        worst = follow(name, tiny, reference, CHAINS)
    print(f"{name} {worst:.1e}")
    assert worst <= EXACT
    assert len([warning for warning in caught if "chains" in str(warning.message)]) == 1


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_grouping_of_heads_scores_alike(heads, dtype, tiny):
    """Chains of one, few and many tokens take different ways through the attention kernel."""
    model = tiny("llama", num_key_value_heads=heads).to(dtype)
    plain = tiny("llama", num_key_value_heads=heads).to(dtype).to(torch.float64)
    target = HFTarget(model)
    text = torch.randint(3, 61, (100,), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = plain(text[None]).logits[0]
    cache = target.open(1, 128)
    target.prefill([Prompt(text[:71])], (0,), cache, Want())
    for start, end in ((70, 71), (71, 75), (75, 100)):
        chain = TokenTree(text[start:end], Forest.chain((end - start - 1,)))
        logits = target.score(chain, (0,), cache).logits
        cache.commit(chain, [end - start - 1], (0,))
        error = (logits.double() - expected[start:end]).norm() / expected[start:end].norm()
        assert error < (1e-5 if dtype == torch.float32 else 0.1 if dtype == torch.bfloat16 else 0.02)


def test_rows_together_may_have_more_tokens_than_a_slot(tiny, reference, float64_throughout):
    """As when prompts are read into slots that grow with their texts: this model asks for offsets of all."""
    model = tiny("llama4_text")
    fresh, target = reference(model), HFTarget(model).on_demand()
    texts = [
        torch.randint(3, 61, (size,), generator=torch.Generator().manual_seed(size)) for size in (50, 45)
    ]
    cache = target.open(2, 0)
    roots = TokenTree.roots(torch.stack([text[-1] for text in texts]))
    found = target.score(roots, (0, 1), cache, gap=[text[:-1] for text in texts]).logits
    for row, text in enumerate(texts):
        assert float((found[row] - fresh(text).logits[0, -1]).abs().max()) <= EXACT
