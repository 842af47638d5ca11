"""Verdict on texts at temperature 0: is every token the most probable one, up to rounding?"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.audit.check import FAULT, NOT_TESTED, PASSED, Check


class Gaps:
    """The gaps of a server's greedy tokens: the reference's largest logit at a position, less its logit of
    the token that the server chose. 0: the server chose the reference's most probable token."""

    def __init__(self, tie: float) -> None:
        """`tie`: largest gap that rounding explains."""
        self._tie = tie
        self._num_texts = self._num_unknown = self._num_ties = 0
        self._largest, self._fault = 0.0, ""

    @property
    def is_fault(self) -> bool:
        """Whether a gap is too large for rounding."""
        return bool(self._fault)

    def add(self, gaps: Sequence[float], prompt: str) -> None:
        """The gap of every token of a text."""
        self._num_texts += 1
        self._num_ties += sum(0 < gap <= self._tie for gap in gaps)
        for at, gap in enumerate(gaps):
            if gap > self._largest:
                self._largest = gap
                if gap > self._tie:
                    self._fault = f"token {at} of the answer to {_short(prompt)} is no tie"

    def add_text(self, gap: float | None, prompt: str) -> None:
        """The gap at the first difference of a text from the reference's; None: unknown."""
        if gap is None:
            self._num_texts += 1
            self._num_unknown += 1
        else:
            self.add([gap], prompt)

    def judge(self, check: Check) -> None:
        """The verdict so far."""
        told = f"largest gap {self._largest:.2g}, a tie up to {self._tie:.2g}; ties: {self._num_ties}"
        if self._fault:
            check.verdict, check.detail = FAULT, f"{self._fault}: {told}"
        elif self._num_unknown:
            check.verdict = NOT_TESTED
            check.detail = (
                f"{self._num_unknown} of {self._num_texts} texts differ, and without the reference's log "
                "probabilities a tie cannot be told from a fault"
            )
        elif self._num_texts:
            check.verdict, check.detail = PASSED, told
        else:
            check.detail = "no text was generated"


def _short(prompt: str) -> str:
    return repr(prompt if len(prompt) <= 30 else "..." + prompt[-27:])
