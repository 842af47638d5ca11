"""STAND: drafts drawn from mean probabilities stay exact, and gain with every text on the same problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Parts, Step
from outpace.core.grower import Grower
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Shape
from outpace.decode import Session
from outpace.drafters.lookup.rank_template import accepted_ranks, fitted, rank_template
from outpace.indexes.compiled_loops import CompiledLoop
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.mutants.ngram_tables import informed
from outpace.proof.per_row_drafter import row_by_row
from outpace.proof.reference import table_logits
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.training_free.stand.ngram_probabilities import NGramProbabilities
from outpace.recipes.training_free.stand.recipe import NGramProbabilityDrafter, stand
from outpace.sampling.target_probs import LazyTargetProbs


def knowing(target: TableTarget, model: TableTarget, **options: Any) -> Parts:
    """Parts whose n-gram table holds the next-token distribution of `model` after each pair of tokens."""
    parts = stand.build(target, **options)
    assert isinstance(parts.drafter, NGramProbabilityDrafter)
    informed(parts.drafter, model)
    return parts


def steps(parts: Parts, prompts: Sequence[Sequence[int]], *, seed: int = 0, tokens: int = 40) -> list[Step]:
    sampling = [SamplingParams(1.0, max_tokens=tokens, seed=seed + row) for row in range(len(prompts))]
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs)
    return [step for step in session.steps() if step.scores.logits is not None]


def accepted(found: Sequence[Step]) -> float:
    generated = [len(row) for step in found for row in step.generated]
    return sum(generated) / len(generated)


@pytest.mark.parametrize("params", [{}, {"top_p": 0.8}, {"top_k": 2}])
@pytest.mark.parametrize("temperature", [pytest.param(0.6, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize(("levels", "width"), [((2, 2), 2), ((2, 1), 3), ((2,), 4)])
def test_the_distribution_is_the_targets_with_a_distribution_cut_short(
    levels: tuple[int, ...], width: int, temperature: float, params: dict[str, Any]
) -> None:
    target, model = TableTarget(4, seed=1), TableTarget(4, seed=2, order=2)
    cases = [
        Case((0, 1), SamplingParams(temperature, max_tokens=3, **params)),
        Case((2, 3, 3), SamplingParams(max_tokens=4)),
    ]
    build = row_by_row(lambda: knowing(target, model, nodes_per_depth=levels, top_k=width))
    found = enumerate_distributions(build, cases, replays=5)
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND
    # drafts are drawn, and lead to the same texts in several ways
    assert found.runs > sum(map(len, found.distributions))


class Chosen(NGramProbabilityDrafter):
    """The likeliest tokens without a claim, at any temperature."""

    def draw(self, grower: Grower, parents: Any, ctx: Context) -> None:
        known = self.table.tokens[[each.row for each in parents]].tolist()
        tokens = [token for each, row in zip(parents, known, strict=True) for token in row[: each.count]]
        grower.add_chosen([each.node for each in parents for _ in range(each.count)], torch.tensor(tokens))


@pytest.mark.slow
@pytest.mark.parametrize("levels", [(1, 1), (2,)])
def test_drawn_drafts_are_accepted_more_than_the_likeliest(levels: tuple[int, ...]) -> None:
    def kept(kind: type[NGramProbabilityDrafter], seed: int) -> float:
        target = TableTarget(4, seed=seed, order=2, spread=1.0)

        def build() -> Parts:
            return replace(knowing(target, target, nodes_per_depth=levels), drafter=informed(kind(4), target))

        return expected_accepted(build, 2, (0, 1))

    assert sum(kept(NGramProbabilityDrafter, seed) for seed in range(6)) > sum(
        kept(Chosen, seed) for seed in range(6)
    )


@pytest.mark.slow
def test_later_texts_on_a_problem_gain_more() -> None:
    target = TableTarget(30, order=2, seed=3, spread=2.5)
    parts = stand.build(target)
    gains = [accepted(steps(parts, [[1, 2, 3]], seed=seed)) for seed in range(30)]
    assert sum(gains[20:]) > sum(gains[10:20]) > sum(gains[:10])


@pytest.mark.slow
def test_a_fitted_template_is_better_than_the_usual_one() -> None:
    target = TableTarget(30, order=2, seed=3, spread=6.0)  # surer than most: worth a deeper tree
    wide = stand.build(target, parents=rank_template(0, (4, 8, 8, 8, 8, 8), width=4).parents)
    practice = [step for seed in range(60) for step in steps(wide, [[1, 2, 3]], seed=seed)]
    found = fitted(accepted_ranks(practice[len(practice) // 2 :]), 8)

    def tested(shape: Shape) -> float:
        parts = stand.build(target, parents=shape.parents)
        parts = replace(parts, drafter=deepcopy(wide.drafter))  # both start from the same table
        return accepted([step for seed in range(100, 130) for step in steps(parts, [[1, 2, 3]], seed=seed)])

    usual = rank_template(8, width=10)
    assert len(found.parents) == len(usual.parents) == 8
    assert tested(found) > tested(usual) + 0.5


def test_the_table_holds_the_means_at_accepted_tokens() -> None:
    target = TableTarget(5, order=2, seed=1)
    parts = stand.build(target, top_k=3)
    found = steps(parts, [[1, 2, 3]], tokens=60)
    text = [1, 2, 3, *(token for step in found for token in step.generated[0])]
    plain = NGramProbabilities(4, 3)
    # after the last token of the prompt first; the last token of all is not read
    for end in range(3, len(text)):
        best = target.logits[target.state(text[:end])].softmax(-1).topk(3)
        plain.update(text[max(0, end - 4) : end], [best.indices.tolist()], [best.values.tolist()])
    assert isinstance(parts.drafter, NGramProbabilityDrafter)
    assert len(parts.drafter.table) == len(plain) > 30
    for end in range(4, len(text)):
        length, ids, means = parts.drafter.table.lookup(text[:end])
        assert (length, ids) == plain.lookup(text[:end])[:2]
        assert means == pytest.approx(plain.lookup(text[:end])[2], abs=1e-6)


def test_a_full_table_starts_anew() -> None:
    target = TableTarget(30, seed=1)
    parts = replace(stand.build(target), drafter=NGramProbabilityDrafter(30, capacity=50))
    steps(parts, [[1, 2], [3]], tokens=200)
    assert isinstance(parts.drafter, NGramProbabilityDrafter)
    assert 0 < len(parts.drafter.table) <= 50
    assert parts.drafter.table.lookup([1, 2])[0] == 0  # forgotten since


def test_greedy_rows_are_not_drawn_for() -> None:
    target = TableTarget(4, seed=1)
    sampling = [
        SamplingParams(max_tokens=30),
        SamplingParams(1.0, max_tokens=30, seed=1),
        SamplingParams(0.7, max_tokens=30, top_p=0.5),
    ]
    prompts = [[0, 1], [2, 2, 2], [3]]
    parts = knowing(target, TableTarget(4, seed=2, order=2))
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs)
    seen: set[tuple[int, bool]] = set()
    for step in session.steps():
        tree = step.draft.tree
        rows = tree.claim.row if isinstance(tree.claim, Drawn) else (-1,) * len(tree)
        for node in range(tree.forest.num_rows, len(tree)):
            if step.scores.logits is not None:
                seen.add((step.ctx.slots[tree.forest.rows[node]], rows[node] >= 0))
    assert seen == {(0, False), (1, True), (2, True)}
    assert session.request(0).output() == texts(autoregressive.build(target), prompts, sampling)[0]


def test_defaults_are_the_papers() -> None:
    parts = stand.build(TableTarget(30))
    assert isinstance(parts.drafter, NGramProbabilityDrafter)
    assert (parts.drafter.table.max_ngram, parts.drafter.table.width) == (4, 10)
    assert stand.options["nodes"].default == 80


class PlainNGrams:
    """The same with dicts."""

    def __init__(self, longest: int, width: int, capacity: int) -> None:
        self.longest, self.width, self.capacity = longest, width, capacity
        self.rows: dict[tuple[int, ...], dict[int, np.float32]] = {}
        self.visits = Counter[tuple[int, ...]]()

    def update(self, tokens: list[int], ids: list[list[int]], probs: list[list[float]]) -> None:
        for back, (seen, p) in enumerate(zip(reversed(ids), reversed(probs), strict=True)):
            assert back < len(tokens) and len(seen) == len(p)
        for index, (seen, p) in enumerate(zip(ids, probs, strict=True)):
            end = len(tokens) - len(ids) + index + 1
            for n in range(2, min(self.longest, end) + 1):
                key = tuple(tokens[end - n : end])
                if key not in self.rows and len(self.rows) >= self.capacity:
                    break
                old, k, new = self.rows.get(key, {}), self.visits[key], dict(zip(seen, p, strict=True))
                mean = {
                    token: k / (k + 1) * float(old.get(token, 0)) + new.get(token, 0.0) / (k + 1)
                    for token in {*old, *new}
                }
                best = sorted(mean, key=lambda token: (-mean[token], token))[: self.width]
                self.rows[key] = {token: np.float32(mean[token]) for token in best}
                self.visits[key] += 1

    def lookup(self, tokens: list[int]) -> tuple[int, list[int], list[float]]:
        for n in range(min(self.longest, len(tokens)), 1, -1):
            if (row := self.rows.get(tuple(tokens[-n:]))) is not None:
                return n, list(row), [float(mean) for mean in row.values()]
        return 0, [], []


def test_ngrams_have_the_mean_of_what_was_observed(loops: str) -> None:
    rng = np.random.default_rng(0)
    for longest, width, capacity in ((4, 5, 1 << 10), (3, 2, 20)):
        table, plain = NGramProbabilities(longest, width, capacity), PlainNGrams(longest, width, capacity)
        for _ in range(60):
            tokens = rng.integers(0, 4, rng.integers(1, 12)).tolist()
            num, best = int(rng.integers(0, len(tokens) + 1)), int(rng.integers(1, width + 1))
            ids = [rng.permutation(8)[:best].tolist() for _ in range(num)]
            probs = [np.sort(rng.dirichlet(np.ones(best)))[::-1].tolist() for _ in range(num)]
            table.update(tokens, ids, probs)
            plain.update(tokens, ids, probs)
            for query in (tokens, tokens[:-1], rng.integers(0, 4, 5).tolist(), [3], []):
                n, found, means = table.lookup(query)
                expected = plain.lookup(query)
                assert (n, found) == expected[:2] and means == pytest.approx(expected[2], rel=1e-6)
                (place,) = table.rows([([-1] * longest + query)[-longest:]])
                assert table.tokens[place, : len(found)].tolist() == found if n else place == -1
        assert len(table) == len(plain.rows) <= capacity
        assert table.nbytes == sum(
            array.nbytes for array in [table.tokens, table.means, table.visits, *table.map, table.size]
        )
        table.clear()
        assert len(table) == 0 and table.lookup([1, 2, 3]) == (0, [], []) and not len(table.rows([]))


def test_observations_that_do_not_fit_are_refused() -> None:
    table = NGramProbabilities(width=2)
    with pytest.raises(ValueError, match="n <= 1 tokens and K <= 2"):
        table.update([1], [[1], [2]], [[0.5], [0.5]])
    with pytest.raises(ValueError, match="K <= 2"):
        table.update([1, 2], [[1, 2, 3]], [[0.5, 0.2, 0.1]])


def test_both_ways_of_running_fill_the_same_ngrams(
    monkeypatch: pytest.MonkeyPatch, texts: Callable[..., list[list[int]]]
) -> None:
    pytest.importorskip("numba")

    def fill() -> list[np.ndarray]:
        rng, ngrams = np.random.default_rng(0), NGramProbabilities(capacity=200)
        for text in texts(6, 30):
            if len(text) > 3:
                ngrams.update(text, rng.integers(0, 50, (3, 1)), rng.random((3, 1)))
        return [ngrams.tokens, ngrams.means, ngrams.visits, *ngrams.map]

    compiled = fill()
    monkeypatch.setattr(CompiledLoop, "__call__", lambda self, *arguments: self.plain(*arguments))
    for one, other in zip(compiled, fill(), strict=True):
        assert np.array_equal(one, other)


def test_a_template_is_filled_with_the_likeliest_after_the_longest_ngrams(loops: str) -> None:
    rng = np.random.default_rng(2)
    table = NGramProbabilities(3, 4)
    text = rng.integers(0, 6, 200).tolist()
    for end in range(2, len(text)):
        probs = rng.dirichlet(np.ones(6))
        ids = np.argsort(-probs)[:4]
        table.update(text[max(0, end - 3) : end], [ids.tolist()], [probs[ids].tolist()])
    shape = Shape((0, 0, 0, 0, 0, 1, 1, 2, 6, 9))  # wider than the table
    for context in ([1], [5, 9], text[:7], text[-3:], [0, 1, 2, 3, 4, 5]):
        tokens, parents, weights, matched = table.draft(context, shape)
        expected: list[tuple[int, int, float]] = []
        stands, texts = {0: -1}, {0: context}
        for node, parent in enumerate(shape.parents, 1):
            if parent not in texts:
                continue
            _, known, means = table.lookup(texts[parent])
            rank = shape.children[parent].index(node)
            if rank < len(known):
                above = stands[parent]
                stands[node], texts[node] = len(expected), [*texts[parent], known[rank]]
                expected.append((known[rank], above, means[rank] * (expected[above][2] if above >= 0 else 1)))
        assert list(zip(tokens, parents, strict=True)) == [each[:2] for each in expected]
        assert weights == pytest.approx([each[2] for each in expected])
        assert matched == bool(expected)
