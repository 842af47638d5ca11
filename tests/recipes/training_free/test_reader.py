"""READER: how large its tree is. What it shares with RASD is tested in `test_rasd_and_reader`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import outpace
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.decode import Session
from outpace.recipes.training_free.reader import deepened, reader
from outpace.sampling.target_probs import LazyTargetProbs

CODE = "for name, value in sorted(table.items()):\n    print(name, value)\n" * 3


def test_the_number_of_nodes_is_as_given() -> None:
    target, draft = outpace.load("zoo:target"), outpace.load("zoo:draft")
    prompt = torch.tensor(target.tokenizer(CODE)["input_ids"])
    parts = reader.build(target.target, draft=draft.target, nodes=20)
    session = Session(parts, [prompt, prompt[:9]], [SamplingParams(max_tokens=32)] * 2, LazyTargetProbs)
    found = [step for step in session.steps() if step.scores.logits is not None]
    assert max(len(nodes) for step in found for nodes in step.draft.tree.forest.nodes) == 21


@pytest.mark.parametrize(
    ("nodes", "paths"),
    [
        (3, {(7,), (7, 8), (1,)}),
        (5, {(7,), (7, 8), (1,), (1, 2), (3,)}),
        (9, {(7,), (7, 8), (1,), (1, 2), (3,), (1, 2, 9)}),
    ],
)
def test_nodes_are_kept_by_the_probability_that_they_are_reached(
    nodes: int, paths: set[tuple[int, ...]]
) -> None:
    """The drafter's path 1 2 is reached with 0.6 and 0.3, its 3 with 0.25. Found at the root, after a match
    of 4 tokens: 7 8, with 0.8 * 4 / 5 and 0.8 * 4 / 6; after 1 2 and a match of one token: 9, with
    0.3 * 1 / 2."""
    found = {(): [([7, 8], [-1, 0], [0.8, 0.8], 4)], (1, 2): [([9], [-1], [1.0], 1)]}
    sources = SimpleNamespace(continuations=lambda *given: found.get(tuple(given[-1]), []))
    draft_probs = torch.tensor([1.0, 0.6, 0.25, 0.5])
    tree = TokenTree(torch.tensor([0, 1, 3, 2]), Forest.of([-1, 0, 0, 1], 1), draft_probs.log())
    fused = deepened(
        cast(Any, None),
        cast(Any, SimpleNamespace(depth=(20,))),
        tree,
        torch.zeros(1, 10),
        sources=cast(Any, sources),
        retrieval_depth=16,
        nodes=nodes,
    )
    tokens = fused.tokens.tolist()
    assert {
        tuple(tokens[each] for each in fused.forest.path(node)[1:]) for node in range(1, len(fused))
    } == paths
