"""The majority vote of branches that finish one after another, and when its result is certain."""

from __future__ import annotations

import re

NUMBER = r"-?\d+(?:\.\d+)?"


class Tally:
    """Votes for answers, in the order in which the branches finished.

    The answer with the most votes leads; of several, the one that got its first vote earliest."""

    def __init__(self, num_branches: int) -> None:
        self._left = num_branches  # branches that have not finished
        self._votes: dict[str, int] = {}  # in the order of first votes

    def add(self, answer: str | None) -> None:
        """Add the next branch that has finished; None: it gave no answer. ValueError if all have finished."""
        if self._left == 0:
            raise ValueError("all branches have voted")
        self._left -= 1
        if answer is not None:
            self._votes[answer] = self._votes.get(answer, 0) + 1

    @property
    def votes(self) -> dict[str, int]:
        """Answer -> number of votes, the leading answer first."""
        return dict(sorted(self._votes.items(), key=lambda pair: -pair[1]))

    @property
    def leader(self) -> str | None:
        """The leading answer; None without votes."""
        return next(iter(self.votes), None)

    @property
    def decided(self) -> bool:
        """Whether no votes of the branches that have not finished can change the leading answer."""
        leader = self.leader
        if leader is None:
            return self._left == 0
        most, is_before = self._votes[leader], True
        if self._left > most:  # an answer that nobody gave yet; with as many votes it would be later
            return False
        for answer, count in self._votes.items():
            if answer == leader:
                is_before = False
            elif count + self._left > most or (is_before and count + self._left == most):
                return False
        return True


def answer_pattern(pattern: str) -> re.Pattern[str]:
    """The compiled expression. ValueError for an invalid one."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is no regular expression ({error}): use one such as {NUMBER!r}"
        ) from error


def answer_in(text: str, pattern: re.Pattern[str]) -> str | None:
    """The answer in a text: the last match of the expression, or of its first group if it has one, without
    surrounding spaces; None without a match or if it is empty."""
    found = None
    for match in pattern.finditer(text):
        found = match
    given = found and found[1 if pattern.groups else 0]
    return (given or "").strip() or None
