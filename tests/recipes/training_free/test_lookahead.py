"""Lookahead: the window follows the paper, does not change the text, and saves steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from outpace.core.contracts import Step
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.models import tables, transformers_models
from outpace.recipes.training_free.lookahead import lookahead
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.serving.routed import routed

Pool = dict[int, list[tuple[int, ...]]]


def model(vocab: int = 20, spread: float = 3.0) -> TableTarget:
    return TableTarget(vocab, order=2, seed=1, spread=spread)


def steps(
    target: TableTarget,
    prompts: Sequence[Sequence[int]],
    tokens: int = 60,
    temperature: float = 1.0,
    **options: int,
) -> list[Step]:
    parts = lookahead.build(target, **options)
    sampling = [SamplingParams(temperature, max_tokens=tokens, seed=row) for row in range(len(prompts))]
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs)
    return [step for step in session.steps() if step.scores.logits is not None]


def accepted(found: Sequence[Step]) -> float:
    generated = [len(row) for step in found for row in step.generated]
    return sum(generated) / len(generated)


def paths(step: Step, row: int) -> list[tuple[int, ...]]:
    """The tokens from the root, itself included, to each node of a row."""
    tree = step.draft.tree
    tokens = tree.tokens.tolist()
    return [tuple(tokens[each] for each in tree.forest.path(node)) for node in tree.forest.nodes[row]]


def remember(pool: Pool, first: int, rest: tuple[int, ...], most: int) -> None:
    pool[first] = [*(each for each in pool.get(first, []) if each != rest), rest][-most:]


@pytest.mark.parametrize(("window", "ngram", "guesses"), [(3, 4, 2), (5, 2, 3), (1, 3, 2), (4, 3, 9)])
def test_window_and_guesses_are_those_of_the_rule(window: int, ngram: int, guesses: int) -> None:
    target = model()
    prompts = [[1, 2, 3, 4, 5], [6]]
    rows: list[list[list[int]]] = [[], []]
    pools: list[Pool] = [{}, {}]
    for number, step in enumerate(steps(target, prompts, window=window, ngram=ngram, guesses=guesses)):
        for row, slot in enumerate(step.ctx.slots):
            text, found = step.ctx.tokens[row].tolist(), paths(step, row)
            kept = pools[slot].get(text[-1], [])
            reach = max(window + ngram - 3, ngram - 1)
            expected = {
                (text[-1], *guess[: size + 1])
                for guess in kept
                for size in range(step.ctx.max_draft_depth[row])
            }
            expected = {path for path in expected if len(path) <= ngram}
            assert expected <= set(found)
            if window + ngram - 3 > step.ctx.max_draft_depth[row]:
                assert set(found) == {(text[-1],)} | expected
                continue
            assert max(map(len, found)) <= reach + 1
            if number == 0:  # first guesses are tokens of the prompt
                chain = max(found, key=len)
                assert len(chain) == window + ngram - 2 and set(chain) <= set(prompts[slot])
                rows[slot] = [list(chain)]
            shape = rows[slot]
            shape[0][0] = text[-1]
            ends = [
                (*shape[0][: column + 1], *(each[column] for each in shape[1:]))
                for column in range(len(shape[0]))
            ]
            assert set(ends) <= set(found)
            # guesses that share tokens share nodes
            assert len(found) == len(shape) * len(shape[0]) + len(expected)
            new = [int(target.logits[target.state(text[:-1] + list(path))].argmax()) for path in ends]
            shape.append(new)
            if len(shape) < ngram:
                rows[slot] = [each[1:] for each in shape]
            else:
                for column, first in enumerate(shape[0]):
                    remember(pools[slot], first, tuple(each[column] for each in shape[1:]), guesses)
                rows[slot] = shape[1:]
    assert all(pools)


@pytest.mark.parametrize(
    ("vocab", "window", "ngram", "lookup"), [(3, 2, 2, False), (3, 1, 3, True), (2, 3, 2, False)]
)
def test_the_distribution_is_the_targets_with_windows_that_fit(
    vocab: int, window: int, ngram: int, lookup: bool
) -> None:
    models = tables(vocab)
    cases = [
        Case((0, 1, 1), SamplingParams(1.0, max_tokens=4)),
        Case((1,), SamplingParams(0.7, max_tokens=4, stop=(1,))),
    ]
    found = enumerate_distributions(
        lambda: lookahead.build(
            models.target, window=window, ngram=ngram, guesses=2, pool_from_prompt=lookup
        ),
        cases,
    )
    assert largest_error(found, models.logits, cases) < BOUND


def test_window_tokens_never_touch_what_is_verified() -> None:
    models = transformers_models()
    parts = lookahead.build(models.target, window=3, ngram=3, guesses=3, pool_from_prompt=True)
    prompt = [0, 1, 2, 3, 1, 2, 0, 3, 1]
    session = Session(parts, [torch.tensor(prompt)], [SamplingParams(max_tokens=30)], LazyTargetProbs)
    checked = 0
    for step in session.steps():
        tree = step.draft.tree
        window = 3 * 2 if len(tree) > 6 else 0
        if step.scores.logits is None or len(tree) <= window + 1 or not window:
            continue
        text = step.ctx.tokens[0].tolist()
        for node, path in enumerate(paths(step, 0)):  # positions and masks: as if each path were read alone
            alone = models.logits([tuple(text[:-1] + list(path))])
            assert torch.allclose(step.scores.logits[node : node + 1], alone, atol=1e-9)
        first = len(tree) - (window - 1)  # the window stands last
        other = tree.tokens.clone()
        other[first:] = (other[first:] + 1) % 4
        scores = []
        for tokens in (tree.tokens, other):
            cache = models.target.open(1, 100)
            gap = [torch.tensor(text[:-1])]
            scores.append(models.target.score(TokenTree(tokens, tree.forest), (0,), cache, gap=gap).logits)
        assert torch.equal(scores[0][:first], scores[1][:first])
        assert not torch.equal(scores[0][first:], scores[1][first:])
        checked += 1
    assert checked > 3


def test_wider_windows_and_more_guesses_keep_more() -> None:
    prompts = [[row, row + 1, row + 2] for row in range(8)]

    def kept(window: int, guesses: int) -> float:
        return accepted(steps(model(), prompts, 80, window=window, guesses=guesses))

    assert kept(1, 1) < kept(6, 1) < kept(6, 6)


def test_without_a_window_it_looks_up_n_grams() -> None:
    prompts = [[1, 2, 3, 1, 2, 4, 1], [0]]
    drafted = 0
    for step in steps(model(5), prompts, window=0, ngram=3, guesses=2, pool_from_prompt=True):
        for row in range(len(step.ctx.slots)):
            text, pool = step.ctx.tokens[row].tolist(), Pool()
            for start in range(len(text) - 2):
                remember(pool, text[start], tuple(text[start + 1 : start + 3]), 2)
            guesses = [guess[: step.ctx.max_draft_depth[row]] for guess in reversed(pool.get(text[-1], []))]
            expected = {(text[-1], *guess[:size]) for guess in guesses for size in range(len(guess) + 1)}
            assert sorted(paths(step, row)) == sorted(expected | {(text[-1],)})
            drafted += len(guesses)
    assert drafted > 20
    plain = steps(model(5), prompts, window=0)
    assert all(len(step.draft.tree) == step.draft.tree.forest.num_rows for step in plain)


def test_the_end_of_the_text_does_not_enter_the_window() -> None:
    target = model(4)
    end = 2
    parts = lookahead.build(target, window=4)
    session = Session(
        parts, [torch.tensor([0, 1, 3])], [SamplingParams(1.0, max_tokens=50, stop=(end,))], LazyTargetProbs
    )
    for step in session.steps():
        if step.scores.logits is not None:
            assert end not in step.draft.tree.tokens.tolist()


def test_a_step_that_it_did_not_draft_teaches_nothing() -> None:
    """A server's drafter does not ask for a draft where only the last token of a text is left."""
    parts, _ = routed({"lookahead": lookahead.build(model())})
    sampling = [SamplingParams(max_tokens=tokens) for tokens in (1, 12)]
    session = Session(parts, [torch.tensor([1]), torch.tensor([2, 3])], sampling, LazyTargetProbs)
    assert [len(step.generated) for step in session.steps()][0] == 2
    assert [len(session.request(slot).output()) for slot in (0, 1)] == [1, 12]
    alone = Session(parts, [torch.tensor([1])], sampling[:1], LazyTargetProbs)
    assert [len(step.generated[0]) for step in alone.steps()] == [1]


def test_impossible_windows_are_refused() -> None:
    for options in ({"window": -1}, {"ngram": 1}, {"guesses": 0}):
        with pytest.raises(ValueError, match="lookahead takes"):
            lookahead.build(model(), **options)
