"""DReSD: states are those that chose the next token, and what followed alike states is drafted."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from outpace.core.contracts import Parts, Step, Target
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.indexes import store
from outpace.models.hf.target import load
from outpace.models.names import resolve
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.reference import table_logits
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.training_free.dresd.recipe import HiddenStateSearch, dresd, indexed
from outpace.sampling.target_probs import LazyTargetProbs

CODE = (
    "def read(path):\n    with open(path) as file:\n        return file.read()\n\n\ndef write(path, text):\n"
)
TEXTS = [[0, 1, 2, 0, 1, 1, 0, 2], [2, 1, 0, 1, 2, 2, 0, 1, 0]]


def steps(parts: Parts, prompts: list[list[int]], sampling: SamplingParams) -> list[Step]:
    session = Session(
        parts, [torch.tensor(each) for each in prompts], [sampling] * len(prompts), LazyTargetProbs
    )
    return [step for step in session.steps() if step.scores.logits is not None]


@pytest.mark.parametrize("max_paths", [1, 4])
def test_the_distribution_is_the_targets_with_an_index(tmp_path: Path, max_paths: int) -> None:
    target = TableTarget(3, seed=1)
    store.save(indexed(target, TEXTS), tmp_path / "states")
    cases = [
        Case((0, 1, 2, 0, 1), SamplingParams(temperature=1.0, max_tokens=4)),
        Case((1, 0), SamplingParams(temperature=0.7, max_tokens=3, stop=(2,))),
        Case((2, 0, 1), SamplingParams(temperature=0.0, max_tokens=4)),
    ]
    drafted = 0

    def build() -> Parts:
        parts = dresd.build(target, index=str(tmp_path / "states"), max_paths=max_paths)
        observe = parts.drafter.observe

        def counted(step: Step) -> None:
            nonlocal drafted
            if step.scores.logits is not None:
                drafted += len(step.draft.tree) - step.draft.tree.forest.num_rows
            observe(step)

        parts.drafter.observe = counted
        return parts

    found = enumerate_distributions(build, cases)
    assert drafted > 50
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND


@cache
def zoo():
    return load(resolve("zoo:target"))


@cache
def written() -> list[list[int]]:
    """What the target answers, with the question."""
    target, words = zoo()
    prompt = words(CODE)["input_ids"]
    row_params = [SamplingParams(0.7, max_tokens=60, seed=seed) for seed in range(1, 9)]
    return [[*prompt, *text] for text in texts(autoregressive.build(target), [prompt] * 8, row_params)]


@pytest.mark.slow
def test_a_state_is_the_one_that_chose_the_next_token() -> None:
    """Reading alone and while drafting give the same states, so a text that is indexed finds itself."""
    target, words = zoo()
    prompt = words(CODE)["input_ids"]
    text = texts(autoregressive.build(target), [prompt], [SamplingParams(max_tokens=30)])[0]
    index = indexed(target, [[*prompt, *text]])
    parts = Parts(
        target,
        HiddenStateSearch(index, neighbors=1, max_paths=1),
        dresd.build(target).verifier,
        dresd.build(target).controller,
    )
    found = steps(parts, [prompt], SamplingParams(max_tokens=30))
    assert [token for step in found for token in step.generated[0]] == text
    assert len(found) == 3  # nine tokens and the one after them


@pytest.mark.slow
def test_stored_states_find_themselves() -> None:
    target, words = zoo()
    others = [
        words("Shall I compare thee to a summer's day? Thou art more lovely and more temperate.")["input_ids"]
    ]
    index, states = indexed(target, [written()[0], *others]), []

    class Listening(HiddenStateSearch):
        def observe(self, step: Step) -> None:
            states.append(step.scores.hidden[-1].float().numpy())

    drafter = Listening(index)
    parts = Parts(target, drafter, dresd.build(target).verifier, dresd.build(target).controller)
    steps(parts, [written()[0]], SamplingParams(max_tokens=1))
    ranks = []
    for place, state in enumerate(states[0]):
        values, _ = index.search(state, 10)
        expected = written()[0][place + 1 :][:20]
        same = [row[: len(expected)].tolist() == expected for row in values]
        ranks.append(1 / (1 + same.index(True)) if True in same else 0.0)
    assert np.mean(ranks) > 0.9


def accepted(build: Parts) -> float:
    target, words = zoo()
    found = steps(build, [words(CODE)["input_ids"]], SamplingParams(0.7, max_tokens=60, seed=0))
    return 60 / len(found)


@pytest.mark.slow
def test_texts_of_the_target_are_worth_more_than_others(tmp_path: Path) -> None:
    target, words = zoo()
    poem = "Shall I compare thee to a summer's day? Thou art more lovely and more temperate. "
    for name, corpus in (("own", written()), ("other", [words(poem * 8)["input_ids"]])):
        store.save(indexed(target, corpus), tmp_path / name)
    own, other = (accepted(dresd.build(target, index=str(tmp_path / name))) for name in ("own", "other"))
    assert own > 1.1 * other


def test_an_index_of_another_model_is_refused(tmp_path: Path) -> None:
    target: Target = TableTarget(3, seed=1)
    store.save(indexed(target, TEXTS), tmp_path / "states")
    with pytest.raises(ValueError, match="another tokenizer"):
        dresd.build(TableTarget(2), index=str(tmp_path / "states"))
    with pytest.raises(ValueError, match="3 channels and this one has 4"):
        steps(
            dresd.build(TableTarget(4), index=str(tmp_path / "states")),
            [[0, 1, 2]],
            SamplingParams(max_tokens=4),
        )
    with pytest.raises(ValueError, match="fewer than two states"):
        indexed(target, [[1]])
    with pytest.raises(ValueError, match="at least one"):
        dresd.build(target, max_paths=0)


def test_without_an_index_no_hidden_states_are_requested() -> None:
    assert not dresd.build(TableTarget(3)).want.hidden
