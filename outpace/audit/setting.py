"""Sampling parameters that an audit asks for, and what rounding allows a correct server to differ by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outpace.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class Setting:
    """One combination of sampling parameters."""

    name: str
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a request."""
        given = {"temperature": self.temperature, "top_p": self.top_p}
        if self.penalises:
            given |= {"presence_penalty": self.presence_penalty, "frequency_penalty": self.frequency_penalty}
        return given

    @property
    def penalises(self) -> bool:
        """Whether the distribution depends on the text generated so far."""
        return bool(self.presence_penalty or self.frequency_penalty)

    def params(self, max_tokens: int, **given: Any) -> SamplingParams:
        """The same for our own decoding; `given`: further parameters."""
        return SamplingParams(
            self.temperature,
            top_p=self.top_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            max_tokens=max_tokens,
            **given,
        )


GREEDY = Setting("temperature 0", 0.0)
PLAIN = Setting("temperature 1")
SAMPLED = (
    PLAIN,
    Setting("top_p 0.9", top_p=0.9),
    Setting("temperature 0.7", 0.7),
    Setting("penalties", presence_penalty=0.5, frequency_penalty=0.5),
)


@dataclass(frozen=True)
class Rounding:
    """What two correct computations in one dtype may differ by."""

    dtype: str
    tie: float  # logits of two tokens, either of which may then be the greedy one
    ratio: float  # log probability of a token, as far as it agrees with a bias, for the tests of samples
    largest: float  # log probability of one token as a server reports it
    mean: float  # the same on average


# A logit of 16 to 32 has steps of 0.125 in bfloat16, of 0.016 in float16 and of 2e-6 in float32. Sums of
# another order, other kernels and TF32 add to that: a tie is four steps, and 0.001 in float32.
ROUNDING = {
    each.dtype: each
    for each in (
        Rounding("float64", 1e-6, 0.0, 1e-5, 1e-6),
        Rounding("float32", 1e-3, 2e-4, 1e-2, 1e-3),
        Rounding("float16", 0.0625, 2e-3, 0.1, 0.01),
        Rounding("bfloat16", 0.5, 1e-2, 0.5, 0.05),
    )
}
