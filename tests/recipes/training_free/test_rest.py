"""REST: trees of the most frequent continuations, worth more the more the corpus is like the text."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.indexes import store
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.models.hf.target import load
from outpace.models.names import resolve
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.reference import table_logits
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.training_free.rest import rest
from outpace.sampling.target_probs import LazyTargetProbs

CODE = (
    "def read(path):\n    with open(path) as file:\n        return file.read()\n\n\ndef write(path, text):\n"
)


def steps(parts: Parts, prompt: list[int], sampling: SamplingParams) -> list[Step]:
    session = Session(parts, [torch.tensor(prompt)], [sampling], LazyTargetProbs)
    return [step for step in session.steps() if step.scores.logits is not None]


@pytest.mark.parametrize("nodes", [2, 5])
def test_the_distribution_is_the_targets_with_a_corpus(tmp_path: Path, nodes: int) -> None:
    target = TableTarget(3, seed=1)
    store.save(SuffixArray.build([[0, 1, 2, 0, 1, 1], [2, 1, 0, 1, 2, 2, 0, 1, 0]]), tmp_path / "corpus")
    cases = [
        Case((0, 1, 2, 0, 1), SamplingParams(temperature=1.0, max_tokens=4)),
        Case((1, 0), SamplingParams(temperature=0.7, max_tokens=3, stop=(2,))),
        Case((2, 0, 1), SamplingParams(temperature=0.0, max_tokens=4)),
    ]
    drafted = 0

    def build() -> Parts:
        parts = rest.build(
            target, index=str(tmp_path / "corpus"), nodes=nodes, min_ngram=1, max_cached_tokens=0
        )
        observe = parts.drafter.observe

        def counted(step: Step) -> None:
            nonlocal drafted
            drafted += len(step.draft.tree) - step.draft.tree.forest.num_rows
            observe(step)

        parts.drafter.observe = counted
        return parts

    found = enumerate_distributions(build, cases)
    assert drafted > 100
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND


def test_the_tree_holds_the_most_frequent_beginnings(tmp_path: Path) -> None:
    torch.manual_seed(0)
    documents = torch.randint(0, 6, (30, 80)).tolist()
    store.save(SuffixArray.build(documents), tmp_path / "corpus")
    step = steps(
        rest.build(TableTarget(6), index=str(tmp_path / "corpus"), nodes=12),
        [1, 2, 3],
        SamplingParams(max_tokens=8),
    )[0]
    tree = step.draft.tree
    assert len(tree) == 13
    tokens = tree.tokens.tolist()
    kept = {tuple(tokens[node] for node in tree.forest.path(node)[1:]) for node in range(1, 13)}
    assert len(kept) == 12  # no duplicates
    assert all(path[:-1] in kept or len(path) == 1 for path in kept)
    places = [
        text[at + 3 : at + 13] for text in documents for at in range(78) if text[at : at + 3] == [1, 2, 3]
    ]
    counts: dict[tuple[int, ...], int] = {}
    for after in places:
        for size in range(1, min(7, len(after)) + 1):  # up to the maximum depth
            counts[tuple(after[:size])] = counts.get(tuple(after[:size]), 0) + 1
    assert min(counts[path] for path in kept) >= max(
        count for path, count in counts.items() if path not in kept
    )


@cache
def zoo():
    return load(resolve("zoo:target"))


@pytest.mark.slow
def test_text_of_the_target_is_worth_more_than_other_text(tmp_path: Path) -> None:
    target, words = zoo()
    prompt = words(CODE)["input_ids"]
    written = [
        texts(autoregressive.build(target), [prompt], [SamplingParams(0.7, max_tokens=60, seed=seed)])[0]
        for seed in range(1, 6)
    ]
    poem = "Shall I compare thee to a summer's day? Thou art more lovely and more temperate. "
    other = [words(poem * 4)["input_ids"]]
    lengths = []
    for name, documents in (("own", written), ("other", other)):
        store.save(SuffixArray.build(documents), tmp_path / name)
        found = steps(
            rest.build(target, index=str(tmp_path / name)), prompt, SamplingParams(0.7, max_tokens=60, seed=0)
        )
        lengths.append(60 / len(found))
    assert lengths[0] > 1.1 * lengths[1]


@pytest.mark.slow
def test_what_was_written_helps_the_next_request() -> None:
    target, words = zoo()
    parts, prompt = rest.build(target), words(CODE)["input_ids"]
    params = SamplingParams(max_tokens=48)
    first, second = (steps(parts, prompt, params) for _ in range(2))
    assert [token for step in first for token in step.generated[0]] == [
        t for step in second for t in step.generated[0]
    ]
    assert len(second) < len(first) / 3


def test_a_corpus_of_other_tokens_is_refused(tmp_path: Path) -> None:
    store.save(SuffixArray.build([[1, 2, 9]]), tmp_path / "corpus")
    with pytest.raises(ValueError, match="another tokenizer"):
        rest.build(TableTarget(9), index=str(tmp_path / "corpus"))
    with pytest.raises(ValueError, match="at least one"):
        rest.build(TableTarget(9), nodes=0)


def test_defaults_are_the_papers() -> None:
    defaults = {name: option.default for name, option in rest.options.items()}
    assert (defaults["nodes"], defaults["depth"], defaults["max_ngram"], defaults["min_ngram"]) == (
        64,
        10,
        16,
        2,
    )
