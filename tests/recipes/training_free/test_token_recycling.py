"""Token recycling: the tree is read from the table, and the table holds the target's last top-k tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Step
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Shape
from outpace.decode import Session
from outpace.drafters.lookup.token_recycling import AdjacencyTable, TokenRecycling
from outpace.indexes.candidates import CandidateTree
from outpace.models.table import TableTarget
from outpace.recipes.training_free.prompt_lookup import prompt_lookup
from outpace.recipes.training_free.token_recycling import token_recycling
from outpace.sampling.target_probs import LazyTargetProbs

VOCAB = 50


def model(seed: int = 0) -> TableTarget:
    return TableTarget(VOCAB, order=1, seed=seed, spread=2.0)


def steps(
    parts: Parts, prompts: Sequence[Sequence[int]], tokens: int = 60, temperature: float = 0.0
) -> list[Step]:
    sampling = [SamplingParams(temperature, max_tokens=tokens, seed=row) for row in range(len(prompts))]
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs)
    return [step for step in session.steps() if step.scores.logits is not None]


def accepted(found: Sequence[Step]) -> float:
    """Mean tokens a step and row, the bonus counted."""
    generated = [len(row) for step in found for row in step.generated]
    return sum(generated) / len(generated)


def test_a_tree_may_be_named() -> None:
    parents = (0, 0, 1, 1, 3)
    parts = token_recycling.build(model(), parents=parents)
    largest = max((step.draft.tree for step in steps(parts, [[1, 2, 3]])), key=len)
    assert largest.forest.parents == (-1, *parents)


def filled(table: dict[int, list[int]], root: int, shape: Shape) -> list[tuple[int, int]]:
    """(token, parent) of each node below the root 0: the rule, breadth first."""
    queue, found = [(0, 0, root)], list[tuple[int, int]]()
    while queue:
        place, node, token = queue.pop(0)
        for child, guess in zip(shape.children[place], table.get(token, []), strict=False):
            found.append((guess, node))
            queue.append((child, len(found), guess))
    return found


def test_drafts_follow_the_rule_and_the_last_node_read_wins() -> None:
    parts = token_recycling.build(model(), top_k=3)
    table: dict[int, list[int]] = {}
    prompts = [[1, 2, 3], [4], [5, 6]]
    for step in steps(parts, prompts, temperature=1.0):
        tree = step.draft.tree
        tokens, forest = tree.tokens.tolist(), tree.forest
        shape = parts.controller.plan(step.ctx).shape
        assert shape is not None
        for row, nodes in enumerate(forest.nodes):
            max_depth = step.ctx.max_draft_depth[row]
            expected = filled(table, tokens[row], shape)
            depths = [0]
            for _, parent in expected:
                depths.append(depths[parent] + 1)
            kept = [node for node, depth in enumerate(depths) if depth <= max_depth]
            drafted = sorted(
                (forest.depths[node], tokens[node], tokens[forest.parents[node]]) for node in nodes[1:]
            )
            assert drafted == sorted(
                (
                    depths[n],
                    expected[n - 1][0],
                    expected[p - 1][0] if (p := expected[n - 1][1]) else tokens[row],
                )
                for n in kept[1:]
            )
        logits = step.scores.logits
        assert logits is not None
        for token, row in zip(tokens, logits, strict=True):
            table[token] = row.topk(3).indices.tolist()
    assert len(table) > 20


def test_the_table_stays_from_request_to_request() -> None:
    parts = token_recycling.build(model())
    first, second = (accepted(steps(parts, [[row, row + 1] for row in range(8)])) for _ in range(2))
    assert second > first


class AcceptedOnly(TokenRecycling):
    """Learns from what was kept alone."""

    def observe(self, step: Step) -> None:
        if step.scores.logits is not None:
            kept = [node for leaf in step.kept for node in step.draft.tree.forest.path(leaf)]
            self.learn(step.draft.tree.tokens[kept], step.scores.logits[kept])


def test_rejected_nodes_teach_too() -> None:
    target = model()
    both = token_recycling.build(target)
    less = replace(both, drafter=AcceptedOnly(VOCAB))
    prompts = [[row, row + 1] for row in range(8)]
    assert accepted(steps(both, prompts, 20, 1.0)) > accepted(steps(less, prompts, 20, 1.0))


def test_more_is_accepted_than_with_prompt_lookup() -> None:
    prompts = [[row, 3 * row, 2 * row] for row in range(6)]
    found = steps(token_recycling.build(model()), prompts, temperature=1.0)
    assert accepted(found) > accepted(steps(prompt_lookup.build(model()), prompts, temperature=1.0))


def test_what_was_never_read_has_no_children() -> None:
    drafter = TokenRecycling(VOCAB)
    cache = model().open(1, 100)
    noise = KeyedNoise([0], [1], [1])
    ctx = Context((torch.tensor([1]),), (1,), (9,), (0,), cache, (SamplingParams(),), noise)
    plan = Plan((3,), Shape.branching((2, 2, 2)))
    assert len(drafter.propose(ctx, plan).tree) == 1
    drafter.table.update([1], [list(range(10, 18))])
    assert drafter.propose(ctx, plan).tree.tokens.tolist() == [1, 10, 11]


def test_raw_logits_are_learnt_whatever_the_sampling() -> None:
    parts = token_recycling.build(model(), top_k=4)
    assert isinstance(parts.drafter, TokenRecycling)
    sampling = [SamplingParams(0.5, top_k=1, logit_bias=((3, 50.0),), max_tokens=9)]
    for _ in Session(parts, [torch.tensor([1, 2])], sampling, LazyTargetProbs).steps():
        pass
    logits = model().logits
    for token in range(VOCAB):
        if found := parts.drafter.table.successors(token):
            assert found in [logits[state].topk(4).indices.tolist() for state in (token, VOCAB + token)]


@pytest.mark.parametrize("prompt", [False, True])
def test_prompts_are_learned_from_only_with_the_option(prompt: bool) -> None:
    parts = token_recycling.build(model(), learn_from_prompts=prompt)
    assert isinstance(parts.drafter, TokenRecycling)
    session = Session(
        parts, [torch.tensor([1, 2, 3]), torch.tensor([4, 5])], [SamplingParams()] * 2, LazyTargetProbs
    )
    next(session.steps())
    assert [bool(parts.drafter.table.successors(token)) for token in range(1, 6)] == [
        prompt,
        prompt,
        not prompt,  # the last tokens of the prompts are read with the prompts, or in the next step
        prompt,
        not prompt,
    ]


def test_a_tree_is_filled_as_far_as_the_text_goes() -> None:
    found = steps(token_recycling.build(model(), nodes=24), [[1, 2]], 40)
    assert max(len(step.draft.tree) for step in found) == 1 + 24


def test_a_row_is_what_was_last_read_after_a_token(loops: str) -> None:
    rng = np.random.default_rng(0)
    table, expected = AdjacencyTable(20, 3), dict[int, list[int]]()
    for _ in range(30):
        tokens = rng.integers(0, 20, 12)
        rows = np.argsort(rng.normal(size=(12, 20)))[:, :3]
        table.update(tokens, rows)
        expected |= zip(tokens.tolist(), rows.tolist(), strict=True)  # of equal tokens the last
    assert {token: table.successors(token) for token in range(20) if table.successors(token)} == expected
    assert table.nbytes == 20 * 3 * 4


def test_a_draft_follows_the_template_level_by_level(loops: str) -> None:
    rng = np.random.default_rng(1)
    shape = Shape((0, 0, 0, 0, 1, 1, 2, 5, 5, 8))
    for _ in range(50):
        table = AdjacencyTable(9, 3)  # narrower than the template
        known = rng.permutation(9)[: rng.integers(0, 10)].tolist()
        for token in known:
            table.update([token], [rng.permutation(9)[:3].tolist()])
        root = int(rng.integers(0, 9))
        tokens, parents, place, rank, sums = list[int](), list[int](), {0: -1}, Counter[int](), {0: 0}
        for node, parent in enumerate(shape.parents, 1):
            r = rank[parent]
            rank[parent] += 1
            if parent not in place:
                continue
            row = table.successors(root if parent == 0 else tokens[place[parent]])
            if r < len(row):
                place[node], sums[node] = len(tokens), sums[parent] + r
                tokens.append(row[r])
                parents.append(place[parent])
        expected = [1 / (1 + sums[node]) for node in place if node]
        assert table.draft(root, shape) == CandidateTree(tokens, parents, expected, 1 if tokens else 0)


def test_rows_that_do_not_fit_are_refused() -> None:
    table = AdjacencyTable(9, 3)
    table.update([], [])
    for tokens, rows in (
        ([1], [[1, 2]]),
        ([9], [[1, 2, 3]]),
        ([1], [[1, 2, 9]]),
        ([1], [[1, 2, -1]]),
        ([], [[1, 2, 3]]),
    ):
        with pytest.raises(ValueError, match="give 3 successors for each, of 9 tokens"):
            table.update(tokens, rows)
    with pytest.raises(ValueError, match="not one of"):
        table.draft(9, Shape((0,)))
