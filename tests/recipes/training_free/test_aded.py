"""ADED: the table follows the text, its search is no part of the distribution, and requests of one batch are
apart."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.indexes import store
from outpace.models.hf.target import load
from outpace.models.names import resolve
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.reference import table_logits
from outpace.recipes.training_free.aded.recipe import aded
from outpace.recipes.training_free.aded.trigram_table import TrigramTable
from outpace.sampling.target_probs import LazyTargetProbs

CODE = "class Stack:\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n"


def steps(parts: Parts, prompts: list[list[int]], sampling: SamplingParams) -> list[Step]:
    session = Session(
        parts, [torch.tensor(each) for each in prompts], [sampling] * len(prompts), LazyTargetProbs
    )
    return [step for step in session.steps() if step.scores.logits is not None]


@pytest.mark.parametrize("iterations", [3, 40])
def test_the_distribution_is_the_targets_with_a_corpus(tmp_path: Path, iterations: int) -> None:
    target = TableTarget(3, seed=1)
    store.save(TrigramTable.build([[0, 1, 2, 0, 1, 1], [2, 1, 0, 1, 2, 2, 0, 1, 0]]), tmp_path / "corpus")
    cases = [
        Case((0, 1, 2, 0, 1), SamplingParams(temperature=1.0, max_tokens=4)),
        Case((1, 0), SamplingParams(temperature=0.7, max_tokens=3, stop=(2,))),
        Case((2, 0, 1), SamplingParams(temperature=0.0, max_tokens=4)),
    ]
    found = enumerate_distributions(
        lambda: aded.build(target, index=str(tmp_path / "corpus"), iterations=iterations), cases
    )
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND


@cache
def zoo():
    return load(resolve("zoo:target"), dtype="float32")  # greedy texts do not depend on the drafts


def accepted(found: list[Step], parts: int = 2) -> list[float]:
    """Tokens a step, in the first and the second half of the steps' tokens."""
    generated = [len(step.generated[0]) for step in found]
    half, seen = sum(generated) / parts, 0
    counts = [0] * parts
    for each in generated:
        counts[min(int(seen // half), parts - 1)] += 1
        seen += each
    return [half / count for count in counts]


@pytest.mark.slow
def test_adapting_accepts_more_the_longer_a_text_goes_on() -> None:
    target, words = zoo()
    prompt, params = words(CODE)["input_ids"], SamplingParams(0.5, max_tokens=200, seed=1)
    early, late = accepted(steps(aded.build(target), [prompt], params))
    assert late > 1.1 * early
    never = steps(aded.build(target, weight_step=0.0), [prompt], params)
    assert accepted(never) == [1.0, 1.0]  # a table that is empty and stays so


@pytest.mark.slow
def test_an_ended_request_is_used_by_later_requests_and_not_by_rows_of_its_batch() -> None:
    target, words = zoo()
    prompt, params = words(CODE)["input_ids"], SamplingParams(max_tokens=40)
    parts = aded.build(target)
    first, second = (steps(parts, [prompt], params) for _ in range(2))
    assert len(second) < len(first)
    both = steps(aded.build(target), [prompt, prompt], params)
    assert [len(step.draft.tree) for step in both] == [2 * len(step.draft.tree) for step in first]


def test_memory_is_bounded() -> None:
    table, parts = TrigramTable(capacity=200), aded.build(TableTarget(60, order=1, spread=0.0))
    parts.drafter._table = table
    for seed in range(8):
        steps(parts, [[1, 2]], SamplingParams(1.0, max_tokens=100, seed=seed))
    assert table.metadata["pairs"] == 200 and len(parts.drafter._own) == 0


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one iteration"):
        aded.build(TableTarget(3), iterations=0)
    with pytest.raises(ValueError, match="weight_step"):
        aded.build(TableTarget(3), weight_step=-1.0)
    store.save(TrigramTable.build([[1, 2, 9]]), tmp_path / "corpus")
    with pytest.raises(ValueError, match="another tokenizer"):
        aded.build(TableTarget(9), index=str(tmp_path / "corpus"))


def test_defaults_are_the_papers() -> None:
    defaults = {name: option.default for name, option in aded.options.items()}
    assert [
        defaults[name] for name in ("iterations", "max_paths", "nodes", "depth", "exploration", "weight_step")
    ] == [
        150,
        24,
        64,
        4,
        32.0,
        0.04,
    ]
