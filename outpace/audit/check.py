"""The verdicts of an audit."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt
from typing import Any

PASSED, FAULT, NOT_TESTED = "passed", "FAULT", "not tested"
LEAST_TOKENS = 500  # with fewer a test of samples says nothing
# POWER / sqrt(number of tokens) is the total variation distance that a test of samples finds with
# probability 0.95. From docs/results/audit.md: of eight simulated biases of 0.05 the one that is hardest to
# find was found in 95 % of the servers within 17,408 tokens, and 0.05 * sqrt(17,408) = 6.6
POWER = 6.6


@dataclass
class Check:
    """One thing that was tested, or not."""

    name: str
    verdict: str = NOT_TESTED
    detail: str = ""
    num_texts: int = 0
    num_tokens: int = 0
    p_value: float | None = None  # None: not a statistical test
    finds: float | None = None  # total variation distance that it would find

    def judge(self, log_evidence: float, threshold: float, finding: str) -> None:
        """The verdict of a statistical test: a fault if its evidence exceeds the threshold."""
        self.p_value = min(1.0, exp(-log_evidence))
        if log_evidence > threshold:
            self.verdict, self.detail = FAULT, finding
        else:
            self.verdict, self.detail = PASSED, ""

    def judge_samples(self, log_evidence: float, threshold: float, finding: str) -> None:
        """The same for a test of the distribution of tokens, which needs many."""
        self.judge(log_evidence, threshold, finding)
        if self.verdict == PASSED and self.num_tokens < LEAST_TOKENS:
            self.verdict = NOT_TESTED
            self.detail = f"{self.num_tokens} tokens are too few: {LEAST_TOKENS} are needed"

    def shows_power(self) -> None:
        """State what a test of as many tokens with known distributions finds."""
        if self.num_tokens:
            self.finds = min(1.0, POWER / sqrt(self.num_tokens))

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: value for name, value in vars(self).items() if value is not None}
