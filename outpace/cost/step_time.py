"""Which draft model, and how many draft tokens: predicted tokens per second (Yan et al. 2024, "Decoding
Speculative Decoding").

A step with drafts of `length` tokens takes

    t(length) = length * (t_d + o_token) + t_v(length + 1) + o_step

with the time t_d of a draft forward over one token per row, t_v of a target forward over its tokens per
row, and the time o of everything else, of which sampling is the largest part. It generates tau(length) tokens
per row, the bonus token included. How fast a draft model is depends on its shape and not on its weights, how
many of its tokens are accepted on its weights: so shapes can be timed before anything is trained, and the
question is turned round: how many tokens a step must a shape reach to pay.

Letters: K positions of a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

ROUNDS = 60  # halvings of the interval in which an acceptance rate is searched


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by the length of its drafts, for one draft model and number of rows."""

    draft: float  # of a draft forward
    verify: Callable[[float], float]  # tokens per row -> seconds of a target forward
    token_overhead: float = 0.0  # of a draft token, besides its forward
    step_overhead: float = 0.0  # of a step, besides its forwards and draft tokens

    def __call__(self, length: int) -> float:
        return length * (self.draft + self.token_overhead) + self.verify(length + 1) + self.step_overhead

    def with_overhead(self, measured: Sequence[tuple[int, float]]) -> StepTime:
        """The same forwards with the overhead that explains these measured (length, seconds) of steps: the
        line through those of the shortest and the longest drafts, without negative parts. One length alone
        gives all of it to the step. ValueError without any."""
        if not measured:
            raise ValueError("overhead is what measured steps take besides their forwards: measure some")
        bare = StepTime(self.draft, self.verify)
        rest = sorted((length, seconds - bare(length)) for length, seconds in measured)
        (first, low), (last, high) = rest[0], rest[-1]
        token = max(0.0, (high - low) / (last - first)) if last > first else 0.0
        return StepTime(self.draft, self.verify, token, max(0.0, low - first * token))


def expected_tokens(acceptance: Sequence[float], length: int) -> float:  # (K,)
    """tau: mean tokens of a step with drafts of `length` tokens, the bonus token included. `acceptance[k]`:
    how often token k + 1 of a draft is accepted if those before it were. ValueError if positions are
    missing."""
    if length > len(acceptance):
        raise ValueError(
            f"acceptance is known up to position {len(acceptance)}, not {length}: measure longer"
        )
    return 1 + sum(accumulate(acceptance[:length], mul))


@dataclass(frozen=True)
class Choice:
    """A draft length with what it gives."""

    length: int  # 0: no drafts
    tokens: float  # per step and row
    seconds: float  # per step

    @property
    def speed(self) -> float:
        """Tokens per second of a row."""
        return self.tokens / self.seconds


def best_length(
    acceptance: Sequence[float], seconds: Callable[[int], float], lengths: Iterable[int]
) -> Choice:
    """The length with the most tokens per second; of equally fast ones the first. ValueError without any."""
    choices = [Choice(each, expected_tokens(acceptance, each), seconds(each)) for each in lengths]
    if not choices:
        raise ValueError("there is no draft length to choose from: give at least one")
    return max(choices, key=lambda each: each.speed)


def needed_tokens(reference: Choice, seconds: float) -> float:
    """Tokens that a step of so many seconds must generate to be as fast as the reference: tau * t' / t."""
    return reference.tokens * seconds / reference.seconds


def needed_rate(tokens: float, length: int) -> float | None:
    """The acceptance rate, the same at all positions, at which drafts of `length` tokens give so many tokens
    a step; 0 if one is enough, None if not even drafts that are always accepted do."""
    if tokens <= 1:
        return 0.0
    if tokens > length + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(ROUNDS):
        rate = (low + high) / 2
        low, high = (rate, high) if expected_tokens([rate] * length, length) < tokens else (low, rate)
    return high


@dataclass(frozen=True)
class Needed:
    """What a shape must reach with one draft length to be as fast as a reference."""

    length: int
    tokens: float  # per step
    rate: float | None  # acceptance rate; None: it cannot

    @staticmethod
    def least(reference: Choice, seconds: Callable[[int], float], lengths: Iterable[int]) -> Needed:
        """The length that needs the smallest acceptance rate; where none can reach it, the length that lacks
        the fewest tokens. ValueError without a length."""
        found: list[Needed] = []
        for length in lengths:
            tokens = needed_tokens(reference, seconds(length))
            found.append(Needed(length, tokens, needed_rate(tokens, length)))
        if not found:
            raise ValueError("there is no draft length to choose from: give at least one")
        return min(
            found,
            key=lambda each: (
                each.rate is None,
                each.tokens - each.length if each.rate is None else each.rate,
            ),
        )


def relative_error(predicted: float, measured: float) -> float:
    """(predicted - measured) / measured."""
    return (predicted - measured) / measured
