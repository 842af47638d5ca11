"""LazyTargetProbs: what it computes, for which nodes, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from outpace.core.context import Context
from outpace.core.contracts import Scores
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.models.table import TableTarget
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.sampling.warp import warp

FOREST = Forest.of((-1, -1, 0, 0, 2), 2)
SAMPLING = (SamplingParams(1.0), SamplingParams(0.0))


def distribution(
    logits: torch.Tensor, sampling: tuple[SamplingParams, ...] = SAMPLING, **options: object
) -> LazyTargetProbs:
    noise = KeyedNoise([3, 4], [1, 1], [2, 3])
    tokens = (torch.tensor([5, 1]), torch.tensor([6, 7, 2]))
    ctx = Context(tokens, (2, 3), (9, 9), (0, 1), TableTarget(2).open(2, 9), sampling, noise)
    return LazyTargetProbs(
        Scores(0, logits), TokenTree(torch.tensor([1, 2, 3, 4, 0]), FOREST), ctx, **options
    )


def random_logits() -> torch.Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("nodes", [None, [4, 0], [1]])
def test_distributions_are_those_of_each_nodes_own_row(nodes: list[int] | None) -> None:
    logits = random_logits()
    expected = warp(logits, [SAMPLING[row] for row in FOREST.rows])
    assert torch.equal(distribution(logits).probs(nodes), expected if nodes is None else expected[nodes])


def test_choices_do_not_depend_on_the_other_requested_nodes() -> None:
    logits, noise = random_logits(), KeyedNoise([3, 4], [1, 1], [2, 3])
    together = distribution(logits).choose(None, noise)
    assert together == [distribution(logits).choose([node], noise)[0] for node in range(5)]
    assert together[1] == int(logits[1].argmax())


def test_greedy_rows_never_build_a_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.sampling.target_probs.warp", None)
    logits = random_logits()
    chosen = distribution(logits, (SamplingParams(0.0),) * 2).choose(None, KeyedNoise([1, 2], [1, 1], [1, 1]))
    assert chosen == logits.argmax(-1).tolist()


@pytest.mark.parametrize("at_once", [0, 1 << 17])
def test_greedy_choices_read_few_logits_once_and_check_requested_nodes_only(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    looked: list[int] = []

    def largest(values: torch.Tensor) -> tuple[list[float], list[int]]:
        looked.append(len(values))
        return values.max(-1).values.tolist(), values.argmax(-1).tolist()

    monkeypatch.setattr("outpace.sampling.target_probs.AT_ONCE", at_once)
    monkeypatch.setattr("outpace.sampling.target_probs.largest", largest)
    logits, noise = random_logits(), KeyedNoise([1, 2], [1, 1], [1, 1])
    logits[3, 2] = float("nan")
    greedy = distribution(logits, (SamplingParams(0.0),) * 2)
    for nodes in ([0, 1], [2], [4]):
        assert greedy.choose(nodes, noise) == logits[nodes].argmax(-1).tolist()
    assert looked == ([5] if at_once else [2, 1, 1])
    with pytest.raises(FloatingPointError, match="NaN"):
        greedy.choose([3], noise)


def test_processors_see_each_nodes_own_history() -> None:
    seen: list[list[int]] = []

    def processor(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        seen.append(history[0].tolist())
        return logits

    distribution(random_logits(), processor=processor).probs(None)
    assert seen == [[5, 1], [6, 7, 2], [5, 1, 3], [5, 1, 4], [5, 1, 3, 0]]


@pytest.mark.parametrize("sampling", [SAMPLING, (SamplingParams(0.0),) * 2])
def test_nan_logits_are_one_clear_sentence(sampling: tuple[SamplingParams, ...]) -> None:
    logits = random_logits()
    logits[3, 2] = float("nan")
    with pytest.raises(FloatingPointError, match="NaN logits.*--dtype float32"):
        distribution(logits, sampling).choose(None, KeyedNoise([1, 2], [1, 1], [1, 1]))


def test_infinite_logits_are_no_fault_of_the_settings() -> None:
    logits = random_logits()
    logits[3, 2] = float("inf")
    with pytest.raises(FloatingPointError, match="infinite"):
        distribution(logits).probs(None)
