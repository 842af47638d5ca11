"""Verdict on the log probabilities that a server reports."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from outpace.audit.check import FAULT, NOT_TESTED, PASSED, Check
from outpace.audit.setting import Rounding

LEAST = 100  # fewest tokens of a verdict other than a fault
POSITIVE = 1e-6  # a log probability above that is wrong whatever the reference says


class LogProbs:
    """The server's log probabilities of sampled tokens beside the reference's, at temperature 1."""

    def __init__(self) -> None:
        self._wrong = ""
        self._seen = self._zeros = 0
        self._deviations: list[float] = []

    def add(self, own: Sequence[float | None], reference: Sequence[float] | None) -> None:
        """Those of one text, and the reference's of the same tokens; None: unknown."""
        self._seen += len(own)
        for value in own:
            if value is None or isnan(value):
                self._wrong = self._wrong or f"{value} is no log probability"
            elif value > POSITIVE:
                self._wrong = self._wrong or f"{value:.3g} is positive"
        for value, expected in zip(own, reference or (), strict=False):
            if value is not None and not isnan(value):
                self._deviations.append(abs(value - expected))
                self._zeros += value == 0.0 and expected < -0.5

    def judge(self, check: Check, rounding: Rounding, refused: str) -> None:
        """The verdict; `refused`: the server's message if it refuses to give any."""
        check.num_tokens = len(self._deviations)
        largest = max(self._deviations, default=0.0)
        mean = sum(self._deviations) / max(1, len(self._deviations))
        told = (
            f"deviation {largest:.2g} at most, {mean:.2g} on average "
            f"(allowed: {rounding.largest:g} and {rounding.mean:g})"
        )
        if self._wrong:
            check.verdict, check.detail = FAULT, self._wrong
        elif not self._deviations:
            check.verdict = NOT_TESTED
            check.detail = refused or (
                "the reference does not state any" if self._seen else "the server gives none"
            )
        elif self._zeros:
            check.verdict = FAULT
            check.detail = f"{self._zeros} tokens that are not certain have the log probability 0"
        elif largest > rounding.largest or mean > rounding.mean:
            check.verdict, check.detail = FAULT, told
        elif len(self._deviations) < LEAST:
            check.detail = f"{len(self._deviations)} tokens are too few: {LEAST} are needed"
        else:
            check.verdict, check.detail = PASSED, told
