"""RASD: what its model's tree is pruned by. What it shares with READER is tested in
`test_rasd_and_reader`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import outpace
from outpace.core.tree import Forest, TokenTree
from outpace.recipes.training_free.rasd import pruned

CODE = "for name, value in sorted(table.items()):\n    print(name, value)\n" * 3


@pytest.mark.slow
def test_pruning_saves_nodes_and_loses_little() -> None:
    # in float32 both write the same text, on any machine
    target, draft = (outpace.load(name, dtype="float32") for name in ("zoo:target", "zoo:draft"))
    options = {"draft": draft, "temperature": 0, "max_tokens": 64}
    few, all_ = (
        outpace.generate(target, CODE, "rasd", num_first_tokens=count, **options)[0].statistics
        for count in (10, 4096)
    )
    assert few.num_draft_tokens / few.num_steps <= all_.num_draft_tokens / all_.num_steps
    assert few.num_tokens / few.num_steps > 0.9 * all_.num_tokens / all_.num_steps


@pytest.mark.parametrize(
    ("nodes", "paths"),
    [
        (2, {(1,), (0,), (0, 5)}),  # 0.4 * 0.5 and 0.4 * 0.48 against 0.3 * 0.6 and 0.3 * 0.55
        (3, {(1,), (0,), (0, 5)}),  # the third is the drafted token 1, whose node it shares
        (9, {(1,), (0,), (0, 5), (1, 4)}),  # 3 is none of the drafter's two most probable tokens
    ],
)
def test_branches_are_ranked_by_draft_probability_times_share(
    nodes: int, paths: set[tuple[int, ...]]
) -> None:
    found = [([0, 5, 1, 4, 3, 2], [-1, 0, -1, 2, -1, 4], [0.5, 0.48, 0.6, 0.55, 1.0, 1.0], 3)]
    sources = SimpleNamespace(continuations=lambda *given: found)
    plan = SimpleNamespace(depth=(6,))
    tree = TokenTree(torch.tensor([2, 1]), Forest.chain((1,)))
    logits = torch.tensor([[0.4, 0.3, 0.05, 0.2, 0.03, 0.02]]).log()
    fused = pruned(
        cast(Any, None),
        cast(Any, plan),
        tree,
        logits,
        sources=cast(Any, sources),
        num_first_tokens=2,
        nodes=nodes,
    )
    tokens = fused.tokens.tolist()
    assert {
        tuple(tokens[each] for each in fused.forest.path(node)[1:]) for node in range(1, len(fused))
    } == paths
