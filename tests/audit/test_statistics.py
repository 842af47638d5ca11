"""The sequential tests: expectations by enumeration, and what is found in simulated texts."""

from __future__ import annotations

from copy import deepcopy
from math import exp, log

import pytest
import torch

from outpace.audit.bet import Bet, Repeats, Strays
from outpace.audit.local_reference import nucleus
from outpace.audit.mixture_test import MixtureTest
from outpace.audit.pair_test import PairTest
from outpace.audit.scored_text import ScoredText
from outpace.audit.setting import ROUNDING
from outpace.core.sampling_params import SamplingParams
from outpace.sampling.warp import warp
from tests.tiers import only

VOCAB = 12


def text(probs: torch.Tensor, tokens: list[int], prompt: tuple[int, ...] = (1, 2)) -> ScoredText:
    padded = torch.cat([probs, torch.zeros(len(probs), 1, dtype=probs.dtype)], 1)
    columns = torch.tensor(tokens)
    return ScoredText(padded, torch.arange(VOCAB + 1), columns, range(len(tokens)), tokens, prompt, VOCAB)


def some_probs(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(count, VOCAB, generator=generator, dtype=torch.float64)).softmax(1)


def drawn(probs: torch.Tensor, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(1000 + seed)  # other numbers than those of `some_probs`
    return torch.multinomial(probs, 1, generator=generator)[:, 0].tolist()


def wealth(test: MixtureTest) -> dict[str, torch.Tensor]:
    return {name: each.clone() for name, each in test._logs.items()}


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_every_bet_wins_nothing_on_average(tolerance: float) -> None:
    """Over all tokens that could come next, weighted by their probabilities; and at most nothing with
    probabilities that differ by the tolerance."""
    test = MixtureTest(VOCAB, tolerance=tolerance)
    for seed in range(5):
        probs = some_probs(20, seed)
        test.observe(text(probs, drawn(probs**1.5, seed)))
    before, p = wealth(test), some_probs(1, 99)[0]
    ratios: dict[str, list[torch.Tensor]] = {name: [] for name in before}
    for token in range(VOCAB):
        copy = deepcopy(test)
        copy.observe(text(p[None], [token]))
        for name, logs in wealth(copy).items():
            ratios[name].append((logs - before[name]).exp())
    for name, found in ratios.items():
        if name == "cell":
            continue  # also depends on a random number
        each = torch.stack(found, 1)
        expected = each @ p
        if not tolerance:
            torch.testing.assert_close(expected, torch.ones_like(expected))
            continue
        for row in each:
            worst = p * torch.exp(tolerance * torch.sign(row - row.median()))
            assert float(row @ (worst / worst.sum())) <= 1 + 1e-9


def test_the_randomised_cell_wins_nothing_on_average() -> None:
    p = some_probs(1)[0]
    test = MixtureTest(VOCAB)
    probs = some_probs(200, 3)
    test.observe(text(probs, drawn(probs**2, 0)))
    weights = test._features["cell"].weights()
    torch.testing.assert_close((weights / weights.mean(1, keepdim=True)).mean(1), torch.ones(3).double())
    assert float(p.sum()) == pytest.approx(1)


@pytest.mark.parametrize("power", only([0.7], [0.7, 1.4]))
def test_a_wrong_temperature_is_found_and_the_right_one_is_not(power: float) -> None:
    wrong, right = MixtureTest(VOCAB), MixtureTest(VOCAB)
    for seed in range(60):
        probs = some_probs(32, seed)
        other = probs**power
        wrong.observe(text(probs, drawn(other / other.sum(1, keepdim=True), seed)))
        right.observe(text(probs, drawn(probs, seed)))
    assert wrong.p_value < 1e-6 < 1e-3 < right.p_value
    assert wrong.finding() and right.num_tokens == 60 * 32


def test_columns_for_all_other_tokens() -> None:
    """A coarse distribution, as of a server that names the most probable tokens: no evidence without a fault,
    and tokens that are too improbable are found."""
    right, wrong = MixtureTest(VOCAB), MixtureTest(VOCAB)
    for seed in range(40):
        probs, ids = some_probs(32, seed).topk(4, 1)
        coarse = torch.cat([probs, 1 - probs.sum(1, keepdim=True)], 1)
        named = torch.cat([ids, torch.full((32, 1), VOCAB)], 1)
        for test, p in ((right, coarse), (wrong, coarse * torch.tensor([1, 1, 1, 1, 4.0]))):
            columns = torch.tensor(drawn(p / p.sum(1, keepdim=True), seed))
            tokens = named.gather(1, columns[:, None])[:, 0].tolist()
            test.observe(ScoredText(coarse, named, columns, range(32), tokens, (0,), VOCAB))
    assert wrong.p_value < 1e-6 < 1e-3 < right.p_value


def test_a_bet() -> None:
    bet = Bet(0.1)
    bet.observe(float("-inf"))
    assert bet.log_wealth == pytest.approx(log(0.9)) and bet.log_evidence == 0
    bet.observe(log(100))
    assert exp(bet.log_wealth) == pytest.approx(0.9 * (0.9 + 0.1 * 100))


def test_repeated_texts_are_found_only_where_they_are_improbable() -> None:
    sure, rare = Repeats(), Repeats()
    for _ in range(20):
        sure.observe("a", [1, 2, 3], [-0.01] * 3)
        rare.observe("a", [1, 2, 3], [-9.0] * 3)
    assert sure.bet.log_evidence < 1 and not sure.finding.startswith("token")
    assert rare.bet.log_evidence > 20 and "the same 3 tokens" in rare.finding
    apart = Repeats()
    for number in range(20):
        apart.observe(number, [1, 2, 3], [-9.0] * 3)  # of different prompts
    assert apart.bet.log_evidence == 0


def test_answers_to_other_prompts_are_found() -> None:
    strays = Strays(0.05)
    for _ in range(10):
        strays.observe(-50.0, ())
    assert strays.bet.log_evidence == 0
    strays.observe(-90.0, [-50.0, -95.0])
    assert strays.bet.log_evidence > 30 and "another prompt" in strays.finding


def test_a_bet_on_pairs_wins_nothing_on_average() -> None:
    """If either text is as likely to be the server's, whatever the classifier has learnt."""
    test = PairTest()
    for number in range(30):
        test.observe(number % 3, ["a", "b", "a"], ["b", "c", "c"], ({"x": 0.3}, {"x": -0.1}))
    one, other = deepcopy(test), deepcopy(test)
    one.observe(0, ["a", "c"], ["b"], ({"x": 1.0}, {}))
    other.observe(0, ["b"], ["a", "c"], ({}, {"x": 1.0}))
    gains = [
        [exp(after - before) for after, before in zip(each._logs, test._logs, strict=True)]
        for each in (one, other)
    ]
    for first, second in zip(*gains, strict=True):
        assert first + second == pytest.approx(2)
    assert test.log_evidence > 5 and "texts have" in test.finding()


def test_what_is_not_finite_is_no_evidence() -> None:
    test = PairTest()
    for _ in range(30):
        test.observe(0, ["a"], ["a"], ({"x": float("nan")}, {"x": float("inf")}))
    assert test.log_evidence == 0


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_nucleus_up_to_rounding(dtype: str) -> None:
    logits = 2 * torch.randn(200, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept, out = nucleus(logits.softmax(1), 0.9, ROUNDING[dtype])
    right = warp(logits, [SamplingParams(1.0, top_p=0.9)] * 200) > 0
    assert not (kept & ~right).any() and not (out & right).any() and not (kept & out).any()
    assert kept.any(1).float().mean() > 0.5 and out.any(1).all()
    if dtype == "float64":
        assert (kept | out).float().mean() > 0.99
