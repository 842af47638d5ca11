"""Lookahead (Fu et al. 2024): guess tokens further ahead side by side, step by step better, and keep the
n-grams.

A window is rows of tokens, as wide as there are columns. Row 0 is a chain from the last token of the text;
below each of its tokens hangs the rest of the column, row after row. So a window token is an ordinary node of
the tree: in row r and column j it sees the text, row 0 up to column j and its own column above, r + j places
from the root. What the target finds likeliest after the last row is the next row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.core.tree import Forest, TokenTree
from outpace.sampling.topk import argmax

STRIDE = 0x9E3779B1  # a large odd number: first guesses come from all over the text


class Lookahead:
    """core.contracts.Drafter: the n-grams last met that begin with the root, and the window that makes them.

    A window token may be accepted like any other. With `pool_from_prompt` the n-grams of the text itself are
    kept too.
    """

    want = Want()
    claims: tuple[type[Claim], ...] = ()
    learns_across_rows = drafts_across_rows = False

    def __init__(self, columns: int, ngram: int, guesses: int, *, pool_from_prompt: bool = False) -> None:
        if columns < 0 or ngram < 2 or guesses < 1:
            raise ValueError(
                f"lookahead takes columns, n-grams of 2 or more and guesses: not {columns, ngram, guesses}"
            )
        self._columns, self._ngram, self._guesses = columns, ngram, guesses
        self._pool_from_prompt = pool_from_prompt
        self._texts: dict[int, _Text] = {}

    @property
    def depth(self) -> int:
        """Of the deepest node."""
        return self._ngram - 1 + max(self._columns - 2, 0)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        tokens: list[int] = []
        parents = [-1] * len(ctx.slots)
        for row, slot in enumerate(ctx.slots):
            text = self._texts.get(slot)
            if text is None:
                text = self._texts[slot] = _Text(
                    ctx.tokens[row].tolist(), self._columns, self._ngram, self._guesses
                )
            if self._pool_from_prompt:
                text.read(ctx.tokens[row])
            text.draft(row, int(ctx.tokens[row][-1]), plan.depth[row], tokens, parents)
        if not tokens:
            return Draft(TokenTree.roots(ctx.roots))
        return Draft(
            TokenTree(torch.cat([ctx.roots, torch.tensor(tokens)]), Forest.of(parents, len(ctx.slots)))
        )

    def observe(self, step: Step) -> None:
        logits = step.scores.logits
        if logits is None:
            return
        texts = [self._texts[slot] for slot in step.ctx.slots]
        last = [node for text in texts for node in text.last]
        if not last:
            return
        # the likeliest also where tokens are sampled: a window does better when it does not waver
        chosen, at = argmax(logits[last]).tolist(), 0
        for text, params in zip(texts, step.ctx.sampling, strict=True):
            end = at + len(text.last)
            text.advance(chosen[at:end], params.stop)
            at = end

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._texts.pop(slot, None)


class _Text:
    """The window of one request, and up to `guesses` n-grams for each of their first tokens."""

    def __init__(self, tokens: list[int], columns: int, ngram: int, guesses: int) -> None:
        self._ngram, self._guesses = ngram, guesses
        self._prompt, self._known = tokens, 0
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}  # first token -> the others, the newest last
        # every row that is still missing will take one column off
        self.rows = [[self._any(column) for column in range(columns + ngram - 2)]] if columns else []
        self.last: list[int] = []  # nodes of the last row; none where the window did not fit

    def _any(self, index: int) -> int:
        return self._prompt[STRIDE * (index + 1) % len(self._prompt)]

    def read(self, text: torch.Tensor) -> None:
        """Keep the n-grams of the text that were not kept before."""
        new = text[max(self._known - self._ngram + 1, 0) :].tolist()
        self._known = len(text)
        for start in range(len(new) - self._ngram + 1):
            self._keep(new[start], tuple(new[start + 1 : start + self._ngram]))

    def _keep(self, first: int, rest: tuple[int, ...]) -> None:
        found = self._pool.setdefault(first, {})
        found.pop(rest, None)
        found[rest] = None
        if len(found) > self._guesses:
            del found[next(iter(found))]

    def draft(self, row: int, root: int, depth: int, tokens: list[int], parents: list[int]) -> None:
        """Append this row's guesses and window, no deeper than that; a window that does not fit is left
        out."""
        places: dict[tuple[int, int], int] = {}
        for guess in reversed(self._pool.get(root, ())):
            node = row
            for token in guess[:depth]:
                below = places.get((node, token))
                if below is None:
                    below = places[node, token] = len(parents)
                    parents.append(node)
                    tokens.append(token)
                node = below
        self.last = []
        if not self.rows or len(self.rows[0]) + len(self.rows) - 2 > depth:
            return
        self.rows[0][0] = root
        chain = [row, *range(len(parents), len(parents) + len(self.rows[0]) - 1)]
        parents += chain[:-1]
        tokens += self.rows[0][1:]
        self.last = chain
        for each in self.rows[1:]:
            first = len(parents)
            parents += self.last
            tokens += each
            self.last = list(range(first, len(parents)))

    def advance(self, new: list[int], stop: Sequence[int]) -> None:
        """Take the next row of the window."""
        if not new:
            return
        new = [self._any(column) if token in stop else token for column, token in enumerate(new)]
        self.rows.append(new)
        if len(self.rows) < self._ngram:  # not all rows yet
            self.rows = [each[1:] for each in self.rows]
            return
        for column, first in enumerate(self.rows[0]):
            self._keep(first, tuple(each[column] for each in self.rows[1:]))
        del self.rows[0]
