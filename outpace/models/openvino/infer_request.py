"""Inference of a compiled model over rows of one paged KV cache.

Letters: R rows, N tokens of all rows, n tokens of one row, D size of hidden states and features.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy
import torch
from torch import Tensor

from outpace.core.contracts import Choose, Ends
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.row_inputs import RowInputs
from outpace.models.openvino.export import TracedModel
from outpace.models.openvino.paged_cache import PagedCache
from outpace.models.openvino.request_inputs import Array, RequestInputs, RowTokens
from outpace.models.openvino.rotary import PositionTables
from outpace.models.openvino.size_policy import MAX_TOKENS, SizePolicy


class InferRequest:
    """An OpenVINO inference request for one KV cache."""

    def __init__(
        self,
        model: Any,
        cache: PagedCache,
        graph: TracedModel,
        rotations: PositionTables,
        policy: SizePolicy,
    ) -> None:
        self.model, self._layers = model, graph.layers
        self._infer = model.create_infer_request()
        self._inputs = RequestInputs(self._infer, cache, graph, rotations, policy)
        self._first = numpy.zeros(1, numpy.int64)

    def restart(self) -> None:
        """Begin with other texts: sizes of inferences then do not depend on earlier inferences."""
        self._inputs.restart()

    def read(
        self,
        parts: Sequence[RowTokens],
        logits: bool,
        hidden: Set[int] = frozenset(),
        size: int | None = None,
    ) -> ForwardOutputs:
        """Run one inference over the rows' tokens; returns the outputs of the requested tokens, row by row.
        `hidden`: layers of the graph whose outputs are requested. `size`: number of tokens, padding included;
        None: by the policy."""
        requested = _requested(parts)
        total, size = self._inputs.write(parts, requested if logits else self._first, size)
        # in the calling thread: waking another thread takes as long as a small draft model's forward
        self._infer.infer(share_outputs=True)
        scores = None
        if logits:
            selected = None if self._inputs.selects_logits else requested
            scores = self._output(0, selected, total if requested is None else len(requested))
        states = {
            layer: self._output(index, requested, total)
            for index, layer in enumerate(self._layers, 1)
            if layer in hidden
        }
        return ForwardOutputs(scores, states, computed=size)

    def read_chain(
        self,
        part: RowTokens,
        depth: int,
        choose: Choose | None,
        then: InferRequest,  # runs the inferences over one token; may be this one
        *,
        state: int | None = None,  # layer of the graph whose output is the features of the next token
        draft_ids: Array | None = None,  # token of each logit; None: its index
        ends: Ends | None = None,
    ) -> tuple[list[int], Tensor]:  # (D,), (D, K)
        """Run one inference over the tokens of a row, a chain, and one for each further token of the chain,
        chosen by `choose` (None: the most probable token) from the preceding logits, until the chain has
        `depth` tokens or `ends`. Returns the chosen tokens, the unread last one included, and the logits."""
        infer, last = self._infer, len(part.tokens) - 1
        self._inputs.write([part], numpy.array([last]))
        of_state = None if state is None else 1 + self._layers.index(state)
        at, start = 0 if self._inputs.selects_logits else last, part.start + last + 1
        chosen, every_logits = list[int](), None
        for level in range(depth):
            infer.infer(share_outputs=True)
            logits = infer.get_output_tensor(0).data[0, at]
            if every_logits is None:
                every_logits = numpy.empty((depth, len(logits)), logits.dtype)
            every_logits[level] = logits
            if choose is not None:
                token = choose(torch.from_numpy(every_logits[level : level + 1]))
            else:
                token = int(logits.argmax())
                token = token if draft_ids is None else int(draft_ids[token])
            chosen.append(token)
            if level + 1 == depth or (ends is not None and ends()):
                break
            features = None if of_state is None else infer.get_output_tensor(of_state).data[0, last]
            then._inputs.write_next(part.slot, token, start, features)
            infer, last, at, start = then._infer, 0, 0, start + 1
        assert every_logits is not None
        return chosen, torch.from_numpy(every_logits[: len(chosen)])

    def _output(self, index: int, selected: Array | None, num: int) -> Tensor:  # (num or selected, ...)
        """A copy of an output at the `selected` tokens, or at the first `num`: the next inference overwrites
        the memory."""
        output = self._infer.get_output_tensor(index).data[0]
        return torch.from_numpy(output[:num].copy() if selected is None else output[selected])


def _requested(parts: Sequence[RowTokens]) -> Array | None:
    """Indices of the tokens whose outputs are requested; None: all of them."""
    if all(part.num == len(part.tokens) for part in parts):
        return None
    ends = numpy.cumsum([len(part.tokens) for part in parts])
    return numpy.concatenate([numpy.arange(end - p.num, end) for p, end in zip(parts, ends, strict=True)])


def row_tokens_of(
    row: RowInputs, tokens: Tensor, num: int, cache: PagedCache, features: Tensor | None = None
) -> list[RowTokens]:
    """The tokens of one row of a forward, also stored in `cache.tokens`. Nodes of a tree that are in the KV
    cache already are computed again together with the new nodes. If a tree and the unread committed tokens
    before it do not fit into one inference, the first of these tokens are a chain for a separate one."""
    own, position_ids = cache.tokens[row.slot], cache.position_ids
    own[row.start : row.end] = numbers = tokens.numpy()
    new = None if features is None else features.float().numpy()
    states = None if new is None else _tree_features(row, new, cache)
    if row.depths is None or row.visible is None:
        return [RowTokens(row.slot, row.start, numbers, position_ids[row.start : row.end], None, num, new)]
    size, gap, chain = len(row.depths), max(0, row.base - row.start), list[RowTokens]()
    if alone := min(gap, max(0, gap + size - MAX_TOKENS)):
        part = slice(row.start, row.start + alone)
        first = None if states is None else states[:alone]
        chain.append(RowTokens(row.slot, row.start, own[part], position_ids[part], None, 0, first))
        states = None if states is None else states[alone:]
        gap -= alone
    start, positions, seen = row.base - gap, row.depths.numpy() + row.base, row.visible.numpy()
    if gap:
        positions = numpy.concatenate((position_ids[start : row.base], positions))
        seen = numpy.tri(len(positions), dtype=numpy.bool_)
        seen[gap:, gap:] = row.visible.numpy()
    return [*chain, RowTokens(row.slot, start, own[start : row.end], positions, seen, num, states)]


def _tree_features(row: RowInputs, features: Array, cache: PagedCache) -> Array:
    """Features of the row's gap and of all nodes of its tree so far: the stored ones of earlier nodes, then
    `features`, of the new tokens."""
    if row.start > row.base:
        features = numpy.concatenate((cache.features[row.slot][: row.start - row.base], features))
    cache.features[row.slot] = features[max(0, row.base - row.start) :]
    return features
