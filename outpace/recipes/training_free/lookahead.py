"""Lookahead decoding (Fu et al. 2024): the target drafts n-grams for itself by Jacobi iteration in a window.

New here: nothing. Reuses: Lookahead, Match, Fixed. Exact at any temperature: the draft tokens carry no claim.

The window has `window` columns and `ngram` - 1 rows of guessed tokens and is part of every forward, below the
last token of the text. The most probable tokens after its last row become its next row (Jacobi iteration),
also when sampling. Each column then is an n-gram, stored under its first token. Of the n-grams that begin
with the last token of the text, the newest `guesses` are drafted. One forward scores up to (`window` +
`guesses`) * (`ngram` - 1) tokens. The defaults are the paper's for a model of 7B parameters on a GPU; for 13B
it uses window 10, ngram 5, guesses 10 and for 34B 7, 5, 7. The preset `cpu` is smaller, for hardware on which
more tokens per forward cost time.

Unlike in the authors' code a window token may be accepted, and a fully accepted draft is followed by the
bonus token. The window is initialised with tokens of the prompt, takes `ngram` - 2 steps to fill, and is left
out near the end of a text where it would exceed max_tokens. N-grams are dropped when their request ends.

Use it on a GPU with spare compute, where there is no draft model and the text does not repeat itself.

The window is a matrix of guessed tokens. Its row 0 is a chain that starts with the last token of the text;
below each token of row 0 hangs the rest of its column as a chain. A window token is thus an ordinary tree
node: the one in row r and column j attends to the text, to row 0 up to column j and to its column above it,
at depth r + j. The target's most probable tokens after the last row become the next row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Step, Target, Want, recipe
from outpace.core.tree import Forest, TokenTree
from outpace.sampling.topk import argmax
from outpace.verifiers.match import Match

SMALL = {"window": 5, "ngram": 4, "guesses": 5}


@recipe(paper="arXiv:2402.02057", family="training-free", proven_with=SMALL, presets={"cpu": SMALL})
def lookahead(
    target: Target, *, window: int = 15, ngram: int = 5, guesses: int = 15, pool_from_prompt: bool = False
) -> Parts:
    """N-grams from the window of a Jacobi iteration, verified by matching.

    Args:
        window: columns of the window; 0 drafts from the n-gram pool alone
        ngram: tokens of each n-gram
        guesses: n-grams drafted per step
        pool_from_prompt: also store the n-grams of the prompt and of the generated text
    """
    if target.chains_only:
        raise ValueError(
            "this target reads drafts that are chains, and lookahead's window is a tree: use another method"
        )
    drafter = Lookahead(window, ngram, guesses, pool_from_prompt=pool_from_prompt)
    return Parts(target, drafter, Match(), Fixed(drafter.depth))


STRIDE = 0x9E3779B1  # large odd step through the prompt, from all over which the initial guesses are taken


class Lookahead:
    """Implementation of core.contracts.Drafter: the newest stored n-grams that begin with the root token, and
    the window that produces n-grams.

    A window token can be accepted like any other node. With `pool_from_prompt` the n-grams of the prompt and
    of the generated text are stored too.
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
        """Depth of the deepest draft node."""
        return self._ngram - 1 + max(self._columns - 2, 0)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        tokens: list[int] = []
        parents = [-1] * len(ctx.slots)
        for row, slot in enumerate(ctx.slots):
            text = self._texts.get(slot)
            if text is None:
                stop = ctx.sampling[row].stop
                text = _Text(ctx.tokens[row].tolist(), self._columns, self._ngram, self._guesses, stop)
                self._texts[slot] = text
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
        rows, last, forest = list[_Text](), list[int](), step.draft.tree.forest
        for row, slot in enumerate(step.ctx.slots):
            text = self._texts.get(slot)
            if text is not None and text.last:  # else the window was not drafted, or another drafter drafted
                nodes = forest.nodes[row]
                last += [nodes[local] for local in text.last]
                rows.append(text)
        if not last:
            return
        # argmax also at temperature > 0: the lookahead window converges better without sampling noise
        chosen, at = argmax(logits[last]).tolist(), 0
        for text in rows:
            end = at + len(text.last)
            text.advance(chosen[at:end])
            at, text.last = end, []

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._texts.pop(slot, None)


class _Text:
    """The window of one request, and its pool of up to `guesses` n-grams per first token. Nothing is drafted
    behind a token of `stop`, so the window has none of them; without other tokens there is no window."""

    def __init__(
        self, tokens: list[int], columns: int, ngram: int, guesses: int, stop: Sequence[int]
    ) -> None:
        self._ngram, self._guesses, self._stop = ngram, guesses, stop
        self._num_read = 0
        self._fillers = [token for token in tokens if token not in stop]
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}  # first token -> n-gram rests, oldest first
        # one column is dropped for each of the `ngram` - 2 rows to come, so row 0 starts that much wider
        self.rows = (
            [[self._initial_token(column) for column in range(columns + ngram - 2)]]
            if columns and self._fillers
            else []
        )
        # nodes of the window's last row, numbered within the draft tree of the request's row; empty if the
        # window was not drafted in the step, or was learned from
        self.last: list[int] = []

    def _initial_token(self, index: int) -> int:
        return self._fillers[STRIDE * (index + 1) % len(self._fillers)]

    def read(self, text: torch.Tensor) -> None:
        """Store the n-grams of the text that end in tokens added since the last call."""
        new = text[max(self._num_read - self._ngram + 1, 0) :].tolist()
        self._num_read = len(text)
        for start in range(len(new) - self._ngram + 1):
            self._store(new[start], tuple(new[start + 1 : start + self._ngram]))

    def _store(self, first: int, rest: tuple[int, ...]) -> None:
        found = self._pool.setdefault(first, {})
        found.pop(rest, None)
        found[rest] = None
        if len(found) > self._guesses:
            del found[next(iter(found))]

    def draft(self, row: int, root: int, depth: int, tokens: list[int], parents: list[int]) -> None:
        """Append this row's n-grams, cut to `depth`, and its window to `tokens` and `parents`; a window
        deeper than `depth` is left out."""
        before = len(parents) - 1  # so much larger is a node's index in the whole tree than in its row
        node_of: dict[tuple[int, int], int] = {}
        for guess in reversed(self._pool.get(root, ())):
            node = row
            for token in guess[:depth]:
                below = node_of.get((node, token))
                if below is None:
                    below = node_of[node, token] = len(parents)
                    parents.append(node)
                    tokens.append(token)
                node = below
                if token in self._stop:
                    break
        self.last = []
        if not self.rows or len(self.rows[0]) + len(self.rows) - 2 > depth:
            return
        self.rows[0][0] = root
        last = [row, *range(len(parents), len(parents) + len(self.rows[0]) - 1)]
        parents += last[:-1]
        tokens += self.rows[0][1:]
        for each in self.rows[1:]:
            first = len(parents)
            parents += last
            tokens += each
            last = list(range(first, len(parents)))
        self.last = [0 if node == row else node - before for node in last]

    def advance(self, new: list[int]) -> None:
        """Append `new` as the next row of the window; if the window is full, store its columns as n-grams and
        drop row 0."""
        if not new:
            return
        new = [
            self._initial_token(column) if token in self._stop else token for column, token in enumerate(new)
        ]
        self.rows.append(new)
        if len(self.rows) < self._ngram:  # the window is not full yet
            self.rows = [each[1:] for each in self.rows]
            return
        for column, first in enumerate(self.rows[0]):
            self._store(first, tuple(each[column] for each in self.rows[1:]))
        del self.rows[0]
