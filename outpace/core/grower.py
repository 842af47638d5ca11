"""Builds draft trees: draws their tokens and records the distributions q in the tree's claim.

Letters: B rows, N nodes, M parents to which children are added, K columns of q.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.device_copies import indices
from outpace.core.noise import Key, Noise
from outpace.core.tree import Forest, TokenTree

DRAFT = "draft"


class Grower:
    """Builds the draft trees of all rows in one `propose`, level by level; `tree()` returns them."""

    def __init__(self, roots: Tensor, *, confidence: bool = False) -> None:  # (B,) int64
        self._num_rows = len(roots)
        self._tokens = [roots]
        self.parents = [-1] * self._num_rows
        self.rows = list(range(self._num_rows))
        self._depths = [0] * self._num_rows
        self._local = [0] * self._num_rows
        self._sizes = [1] * self._num_rows
        self._confidence: list[Tensor] | None = [torch.ones(self._num_rows)] if confidence else None
        self._q: list[Tensor] = []
        self._ids: list[Tensor] = []
        self._claim_row = [-1] * self._num_rows
        self._replace: list[bool] = []
        self._draws = [0] * self._num_rows
        self._merged: list[tuple[int, int]] = []  # (node, row of q) of every draw with merge=True

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def keeps_confidence(self) -> bool:
        """Whether draft probabilities are recorded, so that they must be given for new nodes."""
        return self._confidence is not None

    @property
    def newest(self) -> Tensor:
        """Tokens of the nodes added by the last call, in node order."""
        return self._tokens[-1]

    def depth(self, node: int) -> int:
        """Number of draft tokens on the path to a node."""
        return self._depths[node]

    def tokens_from(self, first: int) -> Tensor:
        """Tokens of the nodes from `first` on, in node order; `first` is the first node that some call
        added."""
        calls, start = len(self._tokens), len(self)
        while start > first:
            calls -= 1
            start -= len(self._tokens[calls])
        return torch.cat(self._tokens[calls:]) if calls < len(self._tokens) - 1 else self.newest

    def path_probs(self, nodes: Sequence[int]) -> list[list[float]]:
        """For each of these nodes the conditional draft probabilities of the tokens on its path, root
        excluded. Requires `confidence`."""
        assert self._confidence is not None
        draft_probs, paths = torch.cat(self._confidence).tolist(), list[list[float]]()
        for node in nodes:
            path = list[float]()
            while node >= self._num_rows:
                path.append(draft_probs[node])
                node = self.parents[node]
            paths.append(path[::-1])
        return paths

    def add_drawn(
        self,
        at: Sequence[int],
        q: Tensor,  # (M, K) draft distributions, rows sum to 1
        k: int | Sequence[int],
        noise: Noise,
        ids: Tensor | None = None,  # (M, K) token ids of the columns; None: column k is token k
        *,
        replace: bool = False,
        merge: bool = False,
    ) -> list[int]:
        """Draw `k` children of each node in `at` from its row of q; fewer if no token of positive probability
        is left.

        Returns one node index per draw. With `merge`, equal tokens that this call draws below one node share
        one node; if one call uses `merge`, all calls for the tree must.
        """
        max_draws = k if isinstance(k, int) else max(k)
        rows, local, depths = self.rows, self._local, self._depths
        draw = max([self._draws[n] for n in at])
        key = Key([rows[n] for n in at], [local[n] for n in at], [depths[n] for n in at], DRAFT, draw)
        first = len(self._replace)
        self._q.append(q)
        if ids is not None:
            self._ids.append(ids)
        self._replace.extend([replace] * len(at))
        for node in at:
            self._draws[node] = draw + max_draws
        # a single draw always yields a token, so each parent gets one child
        if max_draws == 1 and (isinstance(k, int) or min(k) == 1):
            columns = noise.choose(q, key)
            tokens = columns if ids is None else ids.gather(1, columns[:, None])[:, 0]
            draft_probs = None if self._confidence is None else q.gather(1, columns[:, None])[:, 0]
            nodes = self._append(at, tokens, range(first, first + len(at)), draft_probs)
            if merge:
                self._merged += zip(nodes, range(first, first + len(at)), strict=True)
            return nodes
        columns = noise.draw(q, max_draws, key, replace=replace)
        tokens = (columns if ids is None else ids.gather(1, columns.clamp(min=0))).flatten()
        draft_probs = None if self._confidence is None else q.gather(1, columns.clamp(min=0)).flatten()
        counts, drawn = [k] * len(at) if isinstance(k, int) else k, columns.tolist()
        pairs = [(m, j) for m, count in enumerate(counts) for j in range(count) if drawn[m][j] >= 0]
        # (index in `at`, column) -> first draw of that column
        first_draw = {(m, drawn[m][j]): (m, j) for m, j in reversed(pairs)} if merge else {}
        kept = list(dict.fromkeys(first_draw[m, drawn[m][j]] for m, j in pairs)) if merge else pairs
        if len(kept) < len(tokens):
            picked = indices([m * max_draws + j for m, j in kept], q.device)
            tokens, draft_probs = tokens[picked], None if draft_probs is None else draft_probs[picked]
        nodes = self._append([at[m] for m, _ in kept], tokens, [first + m for m, _ in kept], draft_probs)
        if merge:
            node_of = dict(zip(kept, nodes, strict=True))
            nodes = [node_of[first_draw[m, drawn[m][j]]] for m, j in pairs]
            self._merged += [(node, first + m) for node, (m, _) in zip(nodes, pairs, strict=True)]
        return nodes

    def add_chosen(self, at: Sequence[int], tokens: Tensor, draft_probs: Tensor | None = None) -> list[int]:
        """Add one child to each node in `at` (repeat a node to add several), not drawn from a distribution
        and therefore verified by matching; returns the new node indices. `tokens` and `draft_probs`, their
        draft probabilities, are (M,)."""
        return self._append(at, tokens, [-1] * len(at), draft_probs)

    def tree(self) -> TokenTree:
        """The tree built so far; if any token was drawn, its claim records the distributions q."""
        tokens = self._tokens[0] if len(self._tokens) == 1 else torch.cat(self._tokens)
        claim = None
        if self._q:
            repeated = len({node for node, _ in self._merged}) < len(self._merged)
            claim = Drawn(
                q=self._q[0] if len(self._q) == 1 else torch.cat(self._q),
                row=tuple(self._claim_row),
                replace=tuple(self._replace),
                ids=torch.cat(self._ids) if self._ids else None,
                draws=tuple(self._merged) if repeated else None,
            )
        return TokenTree(tokens, self._forest(), self._log_confidence(), claim)

    def structure(self) -> TokenTree:
        """Tokens and forest of the tree built so far, without q and draft probabilities: the draft model's
        input for the next level."""
        return TokenTree(torch.cat(self._tokens), self._forest())

    def _forest(self) -> Forest:
        return Forest.of(tuple(self.parents), self._num_rows)

    def _log_confidence(self) -> Tensor | None:
        return None if self._confidence is None else torch.cat(self._confidence).log()

    def _append(
        self, at: Sequence[int], tokens: Tensor, rows: Sequence[int], draft_probs: Tensor | None
    ) -> list[int]:
        first = len(self.parents)
        # roots are on the host, drawn tokens on the draft model's device
        if tokens.device != self._tokens[0].device:
            self._tokens = [level.to(tokens.device, non_blocking=True) for level in self._tokens]
        self._tokens.append(tokens)
        for node, claim_row in zip(at, rows, strict=True):
            row = self.rows[node]
            self.parents.append(node)
            self.rows.append(row)
            self._depths.append(self._depths[node] + 1)
            self._local.append(self._sizes[row])
            self._sizes[row] += 1
            self._claim_row.append(claim_row)
            self._draws.append(0)
        if self._confidence is not None:
            if draft_probs is None:
                raise ValueError("this tree keeps confidence: pass the drafter's probability of each token")
            self._confidence.append(draft_probs.float().cpu())
        return list(range(first, len(self.parents)))
