"""Evidence from single events that are all but impossible at a correct server: a text that repeats an earlier
one, or that answers another prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, log1p

from outpace.audit.mixture_test import log_mean


@dataclass
class Bet:
    """A product of 1 - share + share e over observations e with expectation 1 at most: the wealth of a
    gambler who stakes this share every time. It may be stopped at any time (Ville's inequality)."""

    share: float
    log_wealth: float = 0.0
    log_evidence: float = 0.0  # the largest wealth so far

    def observe(self, log_e: float) -> None:
        """Stake on one observation, given by its logarithm."""
        stake, rest = log(self.share) + log_e, log1p(-self.share)
        self.log_wealth += max(stake, rest) + log1p(exp(-abs(stake - rest)))
        self.log_evidence = max(self.log_evidence, self.log_wealth)


class Repeats:
    """Whether answers to one request repeat each other, as if they had one seed.

    Of two independent texts x and y, the beginning that they share has, under the distribution of x, a
    probability that is a p-value for y: it is at most t with probability t at most. Over m earlier texts the
    smallest times m is one. It becomes an e-value as 1/(2 sqrt(p)), whose expectation is 1 at most (Vovk and
    Wang, E-values: calibration, combination and applications, 2021).
    """

    def __init__(self) -> None:
        self.bet = Bet(0.05)
        self.num_texts = 0
        self.finding = ""
        self._earlier: dict[object, list[tuple[Sequence[int], list[float]]]] = {}
        self._smallest = 0.0

    def observe(self, request: object, tokens: Sequence[int], log_probs: Sequence[float]) -> None:
        """An answer to `request` (prompt and sampling parameters) with the log probability of each token."""
        earlier = self._earlier.setdefault(request, [])
        smallest, shared = 0.0, 0
        for other, sums in earlier:
            length = next(
                (at for at, (a, b) in enumerate(zip(tokens, other, strict=False)) if a != b),
                min(len(tokens), len(other)),
            )
            if length and sums[length - 1] < smallest:
                smallest, shared = sums[length - 1], length
        if earlier:
            log_p = min(0.0, smallest + log(len(earlier)))
            self.bet.observe(-log(2) - log_p / 2)
            if log_p < self._smallest:
                self._smallest = log_p
                self.finding = (
                    f"two answers to one prompt begin with the same {shared} tokens, which has probability "
                    f"{exp(log_p):.1g}"
                )
        sums = list[float]()
        for each in log_probs:
            sums.append((sums[-1] if sums else 0.0) + each)
        earlier.append((list(tokens), sums))
        self.num_texts += 1


class Strays:
    """Whether answers belong to another prompt: the likelihood of an answer after other prompts, over that
    after its own, has expectation 1 at most."""

    def __init__(self, share: float) -> None:
        self.bet = Bet(share)
        self.num_texts = 0
        self.nats = 0.0  # how much more probable the answers are after their own prompts
        self.finding = ""
        self._most = 0.0

    def observe(self, own: float, others: Sequence[float]) -> None:
        """`own`: log probability of an answer after its prompt; `others`: after other prompts, or empty: not
        computed, since the answer is not improbable after its own."""
        self.num_texts += 1
        if not others:
            self.bet.observe(float("-inf"))
            return
        ratio = log_mean(others) - own
        self.bet.observe(ratio)
        self.nats += own - max(others)
        if ratio > self._most:
            self._most = ratio
            self.finding = (
                f"an answer is {self._most:.0f} nats more probable after another prompt than its own"
            )
