"""Rotary frequencies that depend on the length of the text: right up to the limit, refused beyond it."""

from __future__ import annotations

import pytest
import torch

from outpace.core.contracts import Prompt, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.hf.target import HFTarget

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 40,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize(
    "name, options, limit",
    [
        ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 40}, 40),
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 48}, 48),
    ],
)
def test_a_row_is_right_up_to_the_limit_and_refused_beyond_it(name, options, limit, tiny, reference):
    model = tiny(name, **options)
    alone = reference(model)
    target = HFTarget(model)
    assert target.rope_limit == target.max_length == limit
    cache = target.open(2, 200)
    texts = [torch.arange(3, 3 + length) for length in (limit - 2, 5)]
    target.prefill([Prompt(text) for text in texts], (0, 1), cache, Want())
    tree = TokenTree(torch.tensor([20, 21, 22, 23]), Forest.of([-1, -1, 0, 1], 2))
    tree.tokens[:2] = torch.stack([text[-1] for text in texts])
    scores = target.score(tree, (0, 1), cache)
    for node in range(4):
        path, text = tree.forest.path(node), texts[tree.forest.rows[node]]
        expected = alone(torch.cat((text[:-1], tree.tokens[path]))).logits[0, -1]
        assert torch.allclose(scores.logits[node], expected, atol=1e-9)
    cache.commit(tree, [2, 3], (0, 1))
    with pytest.raises(ValueError, match=f"changes its rotary frequencies beyond {limit} tokens"):
        target.score(TokenTree(torch.tensor([20, 21, 22]), Forest.of([-1, 0, 1], 1)), (0,), cache)
    with pytest.raises(ValueError, match="changes its rotary frequencies"):
        target.prefill([Prompt(torch.arange(2, limit + 4))], (0,), target.open(1, 200), Want())


def test_fixed_frequencies_have_no_limit(tiny):
    assert HFTarget(tiny("llama")).rope_limit is None
