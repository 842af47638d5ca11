"""Sequential test of whether tokens were drawn from known distributions; it may stop at any time.

For a token x drawn from p, the likelihood ratio q(x)/p(x) has expectation 1, whatever distribution q is, if q
was chosen before x was seen. So the product of such ratios is a nonnegative martingale under the null
hypothesis, and by Ville's inequality (1939) it ever reaches 1/a with probability a at most. The evidence here
is the average of many such products, each with another alternative q:

- Learned ones. The tokens are divided into categories, and q multiplies the probability of category c by
  w_c = (O_c + s) / (E_c + s): how often it was drawn so far over how often p says it should have been. That
  is the posterior mean under a gamma prior of strength s, and a bet in the sense of Waudby-Smith and Ramdas
  (Estimating means of bounded random variables by betting, 2024). Categories are the rank of the token,
  whether it is the most probable one by its place in the text, the cell of its randomised probability
  integral transform, whether the text or the prompt had it already, and the token itself.
- Tempered ones, with q proportional to a power of p.

Rounding makes a correct server's distribution differ from p. Where its probabilities are within a factor
of exp(tolerance), a ratio e has at most the expectation 1 + (exp(tolerance) - 1) E|e - 1|, by which it is
divided; E|e - 1| is at most the standard deviation of e.

Letters: T tokens of a text, K columns of a distribution, C categories, S strengths of the prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, log

import numpy as np
import torch
from torch import Tensor

from outpace.audit.scored_text import ScoredText
from outpace.proof.sampled_test import uniform_values

STRENGTHS = (20.0, 100.0, 400.0)  # expected draws of a category after which what was drawn counts half
RANKS = (1, 2, 3, 5, 10, 20, 50)  # last rank of each category but the last
RANK_NAMES = (
    "most probable",
    "2nd",
    "3rd",
    "4th to 5th",
    "6th to 10th",
    "11th to 20th",
    "21st to 50th",
    "others",
)
PLACES = (0, 1, 3, 7, 15, 31)  # last index in the text of each category but the last
CELLS = 16
POWERS = (-0.2, -0.07, 0.07, 0.2)  # exponents of p, less 1
PREVIOUS, IN_TEXT, IN_PROMPT, NEW = range(4)
HISTORY_NAMES = ("equal to the token before", "in the text already", "in the prompt only", "new")


class MixtureTest:
    """The evidence that the tokens of many texts are not drawn from the stated distributions."""

    def __init__(self, vocab: int, *, tolerance: float = 0.0, seed: int = 0) -> None:
        """`tolerance`: largest difference of log probabilities between two correct computations."""
        self._slack = expm1(tolerance)
        self._generator = torch.Generator().manual_seed(seed)
        self._features = {
            "rank": _Learned(len(RANKS) + 1),
            "place": _Learned(2 * (len(PLACES) + 1)),
            "cell": _Learned(CELLS),
            "history": _Learned(4),
            "token": _Learned(vocab + 1),
        }
        # log of each product: by feature and strength, then by power
        self._logs = {name: torch.zeros(len(STRENGTHS), dtype=torch.float64) for name in self._features}
        self._logs["temperature"] = torch.zeros(len(POWERS), dtype=torch.float64)
        self.num_tokens = 0
        self.log_evidence = 0.0  # the largest so far

    @property
    def p_value(self) -> float:
        """A bound on the probability of so much evidence against a correct server, at any time."""
        return min(1.0, float(torch.tensor(-self.log_evidence).exp()))

    def observe(self, text: ScoredText) -> None:
        """Add the tokens of a text. The alternatives depend on earlier texts only."""
        if not len(text.columns):
            return
        rank, is_first = ranks(text)
        self._learn("rank", *rank)
        self._learn("place", *_places(text, *is_first))
        values = torch.tensor(uniform_values(text.probs, text.columns.tolist(), self._generator))
        cells = (values * CELLS).long().clamp(0, CELLS - 1)
        self._learn("cell", torch.full((len(cells), CELLS), 1 / CELLS, dtype=torch.float64), cells)
        self._learn("history", *_history(text))
        self._learn_tokens(text)
        self._temper(text)
        self.num_tokens += len(text.columns)
        self.log_evidence = max(self.log_evidence, self.log_wealth)

    @property
    def log_wealth(self) -> float:
        """Log of the average of all products."""
        means = [torch.logsumexp(each, 0) - log(len(each)) for each in self._logs.values()]
        return float(torch.logsumexp(torch.stack(means), 0)) - log(len(means))

    def _multiply(self, name: str, ratios: Tensor, squares: Tensor) -> None:
        """`ratios` (T, S) of the tokens, `squares` (T, S): the expectations of their squares."""
        if self._slack:
            ratios = ratios / (1 + self._slack * (squares - 1).clamp(min=0).sqrt())
        self._logs[name] += ratios.log().sum(0)

    def _learn(self, name: str, masses: Tensor, drawn: Tensor) -> None:
        """`masses` (T, C) probabilities of the categories, `drawn` (T,) those of the tokens."""
        feature = self._features[name]
        weights = feature.weights()
        norms = masses @ weights.T
        self._multiply(name, weights[:, drawn].T / norms, (masses @ (weights**2).T) / norms**2)
        feature.expected += masses.sum(0)
        feature.observed += torch.bincount(drawn, minlength=len(feature.observed))

    def _learn_tokens(self, text: ScoredText) -> None:
        feature = self._features["token"]
        weights = feature.weights()
        drawn = _drawn(text)
        if text.ids.dim() == 1:
            own = weights[:, text.ids]
            norms, squares = text.probs @ own.T, text.probs @ (own**2).T
        else:
            own = weights[:, text.ids]  # (S, T, K)
            norms = (text.probs * own).sum(-1).T
            squares = (text.probs * own**2).sum(-1).T
        self._multiply("token", weights[:, drawn].T / norms, squares / norms**2)
        feature.expected.scatter_add_(0, text.ids.expand_as(text.probs).reshape(-1), text.probs.reshape(-1))
        feature.observed += torch.bincount(drawn, minlength=len(feature.observed))

    def _temper(self, text: ScoredText) -> None:
        logs, own = text.probs.log(), text.log_probs

        def total(power: float) -> Tensor:  # (T,) of p to this power
            return (logs * power).exp().sum(1)

        norms = torch.stack([total(1 + power) for power in POWERS], 1)
        ratios = torch.stack([(own * power).exp() for power in POWERS], 1) / norms
        squares = norms
        if self._slack:
            squares = torch.stack([total(1 + 2 * power) for power in POWERS], 1) / norms**2
        self._multiply("temperature", ratios, squares)

    def finding(self) -> str:
        """What deviates most, for people: the feature with most evidence, and its most deviating category."""
        best = max(self._logs, key=lambda name: float(self._logs[name].max()))
        if best == "temperature":
            power = POWERS[int(self._logs[best].argmax())]
            return f"as if the temperature were {'lower' if power > 0 else 'higher'}"
        feature = self._features[best]
        deviation = (feature.observed - feature.expected) ** 2 / feature.expected.clamp(min=1)
        at = int(deviation.argmax())
        counts = f"drawn {feature.observed[at]:.0f} times, {feature.expected[at]:.0f} expected"
        if best == "rank":
            return f"tokens by rank, {RANK_NAMES[at]}: {counts}"
        if best == "history":
            return f"tokens {HISTORY_NAMES[at]}: {counts}"
        if best == "token":
            return f"token {at}: {counts}"
        if best == "place":
            which = "the most probable token" if at % 2 else "another than the most probable token"
            ends = (*PLACES, "the end")
            start = 0 if at < 2 else int(ends[at // 2 - 1]) + 1
            return f"{which}, from token {start} of a text to {ends[at // 2]}: {counts}"
        return f"tokens at {at / CELLS:.2f} to {(at + 1) / CELLS:.2f} of the mass by rank: {counts}"


class _Learned:
    """How often each of C categories was drawn, and should have been."""

    def __init__(self, count: int) -> None:
        self.observed = torch.zeros(count, dtype=torch.float64)
        self.expected = torch.zeros(count, dtype=torch.float64)

    def weights(self) -> Tensor:  # (S, C)
        strengths = torch.tensor(STRENGTHS, dtype=torch.float64)[:, None]
        return (self.observed + strengths) / (self.expected + strengths)


def _drawn(text: ScoredText) -> Tensor:  # (T,)
    """Token ids of the tokens."""
    if text.ids.dim() == 1:
        return text.ids[text.columns]
    return text.ids.gather(1, text.columns[:, None])[:, 0]


def ranks(text: ScoredText) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Masses and drawn category by rank, and (probability of the most probable token, whether it was drawn).
    The column of all other tokens comes last, however probable it is."""
    order = text.probs.masked_fill(text.ids.expand_as(text.probs) == text.vocab, -1.0)
    values, columns = order.topk(min(RANKS[-1], order.shape[1]), 1)
    # a token beyond the sorted ones has the last rank
    found = columns == text.columns[:, None]
    rank = torch.where(found.any(1), found.long().argmax(1), columns.shape[1])
    kept = values.clamp(min=0)
    bounds = [0, *(min(last, kept.shape[1]) for last in RANKS)]
    masses = [kept[:, a:b].sum(1) for a, b in zip(bounds, bounds[1:], strict=False)]
    rest = (1 - torch.stack(masses, 1).sum(1)).clamp(min=0)
    drawn = torch.bucketize(rank + 1, torch.tensor(RANKS))
    is_rest = _drawn(text) == text.vocab
    drawn = torch.where(is_rest, len(RANKS), drawn)
    return (torch.stack([*masses, rest], 1), drawn), (kept[:, 0], (rank == 0) & ~is_rest)


def _places(text: ScoredText, first: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
    place = torch.bucketize(torch.tensor(list(text.positions)), torch.tensor(PLACES))
    masses = torch.zeros(len(first), 2 * (len(PLACES) + 1), dtype=torch.float64)
    at = torch.arange(len(first))
    masses[at, 2 * place], masses[at, 2 * place + 1] = 1 - first, first
    return masses, 2 * place + is_first.long()


def _history(text: ScoredText) -> tuple[Tensor, Tensor]:
    # numpy: an operation on one row takes a fifth of torch's time
    labels = np.full(text.vocab + 1, NEW)
    labels[list(text.prompt)] = IN_PROMPT
    masses, drawn = np.zeros((len(text.positions), 4)), np.zeros(len(text.positions), np.int64)
    probs, ids, columns = text.probs.numpy(), text.ids.numpy(), text.columns.tolist()
    read = 0
    for row, position in enumerate(text.positions):
        labels[list(text.text[read:position])] = IN_TEXT
        read = position
        if position:
            labels[text.text[position - 1]] = PREVIOUS
        labels[text.vocab] = NEW
        own = labels[ids if ids.ndim == 1 else ids[row]]
        masses[row] = np.bincount(own, probs[row], 4)
        drawn[row] = own[columns[row]]
        if position:
            labels[text.text[position - 1]] = IN_TEXT
    return torch.from_numpy(masses), torch.from_numpy(drawn)


def log_mean(logs: Sequence[float]) -> float:
    """Log of the mean of numbers that are given by their logarithms."""
    return float(torch.logsumexp(torch.tensor(logs, dtype=torch.float64), 0)) - log(len(logs))
