"""What followed the last tokens of a text before, in the text itself and elsewhere, asked at many places of a draft."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.contracts import Context, Step
from outpace.drafters.past import Past
from outpace.drafters.requests import Requests
from outpace.indexes.automaton import SuffixAutomaton
from outpace.indexes.branches import Branches
from outpace.indexes.count_trie import count_trie


class Sources:
    """A request's own text, and what earlier requests and a corpus hold."""

    def __init__(self, past: Past, *, longest: int = 16, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"matches of {shortest} to {longest} tokens: give shortest >= 1 and longest >= shortest")
        self._past, self._longest, self._shortest = past, longest, shortest
        self._requests = Requests(SuffixAutomaton)
        self._own: list[SuffixAutomaton] = []  # of each row of this draft

    def attend(self, ctx: Context) -> None:
        """Call before each draft: catch up with what was committed."""
        self._past.attend(ctx)
        self._own = []
        for own, new in self._requests.follow(ctx):
            own.extend(new.tolist())
            self._own.append(own)

    def found(self, ctx: Context, row: int, length: int, num_nodes: int, assumed: Sequence[int] = ()) -> list[Branches]:
        """What follows the row's text and these tokens; weights are shares of the places that were found."""
        if length < 1:
            return []
        found: list[Branches] = []
        own = self._own[row]
        matched = own.match(assumed).length
        if matched >= self._shortest and (chain := own.following(length, assumed)):
            found.append(Branches(chain, list(range(-1, len(chain) - 1)), [1.0] * len(chain), matched))
        if not self._past.empty:
            context = [*ctx.tokens[row][-self._longest :].tolist(), *assumed][-self._longest :]
            matched, rows = self._past.rows(context, length, self._longest, self._shortest)
            if matched:
                tokens, parents, counts, _ = count_trie(rows, num_nodes, matched)
                found.append(Branches(tokens, parents, [count / len(rows) for count in counts], matched))
        return found

    def observe(self, step: Step) -> None:
        self._past.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._past.release(slots)
        self._requests.release(slots)
