"""The target's distribution at the nodes of a scored tree, computed on demand: p at all nodes is expensive.

Letters: N nodes, M requested nodes, V vocabulary size, T tokens of a node's history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from outpace.core.clock import Seconds, clock_of
from outpace.core.context import Context
from outpace.core.contracts import Scores
from outpace.core.device_copies import indices, on_host
from outpace.core.noise import TARGET, Key, Noise
from outpace.core.row_error import NotFinite, NoTokenLeft
from outpace.core.tree import TokenTree
from outpace.sampling.adjust import Adjuster
from outpace.sampling.topk import at_least_float32, largest
from outpace.sampling.warp import warp

AT_ONCE = 1 << 17  # N * V up to which, on a CPU, one argmax over all nodes is faster than two over some

Processor = Callable[[Tensor, Tensor], Tensor]  # (1, T) history, (1, V) logits -> (1, V) logits
Mix = Callable[[Tensor, Tensor], Tensor]  # (M, V) logits of the target, (M, V) of another model -> (M, V)


class LazyTargetProbs:
    """Implementation of core.contracts.TargetProbs computed from the scores of one forward. `processor`
    changes the logits at each node before the sampling parameters. ValueError if a node has no logits."""

    def __init__(
        self, scores: Scores, tree: TokenTree, ctx: Context, processor: Processor | None = None
    ) -> None:
        if scores.logits is None or scores.first:
            raise ValueError("a distribution needs the logits of every node of the tree, the roots included")
        self._scores, self._logits = scores, scores.logits
        self._other: Tensor | None = None  # (N, V) logits that are mixed with the target's by `_mix`
        self._mix: Mix | None = None
        self._tree, self._ctx, self._processor = tree, ctx, processor
        self._adjuster = Adjuster(ctx) if any(params.changes_logits for params in ctx.sampling) else None
        self._probs: dict[int, Tensor] = {}
        self._all: Tensor | None = None
        self._argmaxes: tuple[list[float], list[int]] | None = None  # per node; None until the first use
        # on an accelerator: a probability of each node whose distribution was not checked yet, and the nodes.
        # They are read together with what is chosen, as every read waits
        self._unchecked: list[tuple[Tensor, Sequence[int]]] = []
        self.seconds: Seconds = 0.0
        self._clock = clock_of(scores.logits.device)

    def mixed_with(self, other: Tensor, mix: Mix) -> LazyTargetProbs:  # (N, V)
        """The distributions of logits that `mix` makes from the target's and from `other`. Both are changed
        before, as by penalties; temperature and truncation apply to what `mix` makes."""
        made = LazyTargetProbs(self._scores, self._tree, self._ctx, self._processor)
        made._other, made._mix = other, mix
        return made

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = TARGET) -> list[int]:
        rows, sampling = self._tree.forest.rows, self._ctx.sampling
        selected = range(len(rows)) if nodes is None else nodes
        greedy = [node for node in selected if sampling[rows[node]].greedy]
        if len(greedy) == len(selected):
            return self._argmax(nodes, selected)
        if not greedy:
            return self._sample(nodes, selected, noise, use)
        sampled = [node for node in selected if not sampling[rows[node]].greedy]
        found = dict(zip(greedy, self._argmax(greedy, greedy), strict=True))
        found.update(zip(sampled, self._sample(sampled, sampled, noise, use), strict=True))
        return [found[node] for node in selected]

    def probs(self, nodes: Sequence[int] | None) -> Tensor:
        probs = self._unchecked_probs(nodes)
        if self._unchecked:
            self._check_read(torch.cat([values for values, _ in self._unchecked]))
        return probs

    def _unchecked_probs(self, nodes: Sequence[int] | None) -> Tensor:
        """`probs`, of which those on an accelerator are not checked yet."""
        began = self._clock()
        if self._all is None and (nodes is None or len(nodes) == len(self._tree)):
            self._all = self._warp(None, range(len(self._tree)))
        if self._all is not None:
            probs = self._all if nodes is None else self._all[indices(nodes, self._all.device)]
        else:
            selected = [node for node in nodes or () if node not in self._probs]
            if selected:
                self._probs.update(zip(selected, self._warp(selected, selected).unbind(), strict=True))
            found = [self._probs[node] for node in nodes or ()]
            probs = found[0][None] if len(found) == 1 else torch.stack(found)
        self.seconds += began.until(self._clock())
        return probs

    def _argmax(self, nodes: Sequence[int] | None, selected: Sequence[int]) -> list[int]:
        began = self._clock()
        logits = self._logits
        if self._adjuster or self._processor or (logits.is_cpu and logits.numel() > AT_ONCE):
            values, tokens = largest(self._rows(nodes, selected))
        else:
            if self._argmaxes is None:
                self._argmaxes = largest(self._rows(None, range(len(self._tree))))
            values, tokens = self._argmaxes
            if nodes is not None:
                values, tokens = [values[node] for node in selected], [tokens[node] for node in selected]
        self._check(values, selected)
        self.seconds += began.until(self._clock())
        return tokens

    def _sample(
        self, nodes: Sequence[int] | None, selected: Sequence[int], noise: Noise, use: str
    ) -> list[int]:
        forest = self._tree.forest
        probs = self._unchecked_probs(nodes)
        began = self._clock()
        if nodes is None:
            key = Key(forest.rows, forest.local, forest.depths, use)
        else:
            rows, local, depths = forest.rows, forest.local, forest.depths
            key = Key(
                [rows[n] for n in selected], [local[n] for n in selected], [depths[n] for n in selected], use
            )
        tokens = noise.choose(probs, key)
        if self._unchecked:
            tokens, values = on_host(tokens, torch.cat([values for values, _ in self._unchecked]))
            self._check_read(values)
        found = tokens.tolist()
        self.seconds += began.until(self._clock())
        return found

    def _warp(self, nodes: Sequence[int] | None, selected: Sequence[int]) -> Tensor:
        rows, sampling = self._tree.forest.rows, self._ctx.sampling
        probs = warp(self._rows(nodes, selected), [sampling[rows[node]] for node in selected])
        values = probs[:, 0]  # softmax makes a row with a NaN all NaN
        if values.is_cpu:
            self._check(values.tolist(), selected)
        else:
            self._unchecked.append((values, selected))
        return probs

    def _check_read(self, values: Tensor) -> None:
        """Check these values, which are those of `_unchecked` in their order."""
        selected = [node for _, nodes in self._unchecked for node in nodes]
        self._unchecked.clear()
        self._check(values.tolist(), selected)

    def _rows(self, nodes: Sequence[int] | None, selected: Sequence[int]) -> Tensor:
        found = self._adjusted(self._logits, nodes, selected)
        if self._other is None or self._mix is None:
            return found
        return self._mix(found, self._adjusted(self._other, nodes, selected))

    def _adjusted(self, logits: Tensor, nodes: Sequence[int] | None, selected: Sequence[int]) -> Tensor:
        """These logits at the nodes, changed by the parameters that are applied before temperature."""
        if nodes is not None:
            # a view instead of a copy of one row
            one = len(nodes) == 1
            logits = logits[nodes[0]][None] if one else logits.index_select(0, indices(nodes, logits.device))
        logits = at_least_float32(logits)
        if self._processor is not None:
            rows = [
                self._processor(self._history(n), row[None]) for n, row in zip(selected, logits, strict=True)
            ]
            logits = torch.cat(rows)
        if self._adjuster is not None:
            rows = self._tree.forest.rows
            logits = self._adjuster(
                logits, [rows[node] for node in selected], [self._path(node) for node in selected]
            )
        return logits

    def _path(self, node: int) -> list[int]:
        """The draft tokens on the path to the node, without the root's token, with the node's."""
        tokens = self._tree.token_list()
        return [tokens[each] for each in self._tree.forest.path(node)[1:]]

    def _history(self, node: int) -> Tensor:  # (1, T)
        """The tokens on which the node's distribution is conditioned: those of the row and of the path."""
        forest = self._tree.forest
        row = forest.rows[node]
        path = self._tree.tokens[forest.path(node)[1:]]
        return torch.cat([self._ctx.tokens[row].to(path.device), path])[None]

    def _check(self, values: Sequence[float], selected: Sequence[int]) -> None:
        """Check the largest logit (or a probability) of each node. NotFinite if the target's logits are NaN
        or +inf; NoTokenLeft if it is -inf or NaN otherwise: sampling parameters exclude all tokens."""
        for node, value in zip(selected, values, strict=True):
            if value != value or value == float("-inf"):
                logits, slot = self._logits[node], self._ctx.slots[self._tree.forest.rows[node]]
                if (logits.isnan() | logits.isposinf()).any():
                    raise NotFinite(
                        slot,
                        "the target gave infinite or NaN logits: "
                        "load it in float32 (--dtype float32) or check its weights",
                    )
                raise NoTokenLeft(
                    slot,
                    "the settings leave no token that may come next: allow more with logit_bias, bad_words, "
                    "min_tokens, the grammar or the model's own generation_config",
                )
