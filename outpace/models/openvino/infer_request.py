"""OpenVINO inference requests over rows of one paged KV cache, and their input tensors.

The tokens of all rows are concatenated and padded to one of a few sizes: the first inference of a size is
slow, and so is a change of size.

Letters: R rows, N tokens of all rows, n tokens of one row, T cache positions, V vocabulary size, D size of
hidden states and features.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from outpace.models.hf.forward_inputs import RowInputs
from outpace.models.hf.forward_outputs import ForwardOutputs
from outpace.models.openvino.export import TracedModel
from outpace.models.openvino.paged_attention import PAGED_INPUTS
from outpace.models.openvino.paged_cache import PagedCache
from outpace.models.openvino.rotary import PositionTables
from outpace.models.openvino.runtime import InputTensor, shared
from outpace.models.openvino.size_policy import MAX_TOKENS, SizeChoice, SizePolicy

# numpy arrays, because every torch call between two forwards takes measurable time
Array = numpy.ndarray[Any, Any]


@dataclass(eq=False, slots=True)
class RowTokens:
    """The n tokens of one row in one inference."""

    slot: int
    start: int  # cache position of the first token
    tokens: Array  # (n,) token ids
    positions: Array  # (n,) position ids
    seen: Array | None  # (n, n) bool, which tokens (columns) each token (row) attends to; None: causal
    num: int  # number of tokens, counted from the last, whose outputs are requested
    features: Array | None = None  # (n, D) input of a draft head


@dataclass(eq=False, slots=True)
class TokenInputs:
    """Views of the input tensors of one size that are filled from token ids and position ids."""

    size: int  # number of tokens, padding included
    ids: Array  # (N,)
    positions: Array  # (N,)
    lookups: list[tuple[Array, Array]]  # table of values by position id (T, ...), input tensor (N, ...)


class InferRequest:
    """An OpenVINO inference request for one KV cache; its input tensors are reused by all inferences."""

    def __init__(
        self,
        model: Any,
        cache: PagedCache,
        graph: TracedModel,
        rotations: PositionTables,
        policy: SizePolicy,
    ) -> None:
        # no reference to the cache, which owns this object: a cycle would delay freeing the memory
        self.model, self._layers = model, graph.layers
        self._infer = request = model.create_infer_request()
        self._tables = cache.tables
        self._ids, self._positions = (InputTensor(request, index, numpy.int64) for index in (0, 1))
        self._keep = InputTensor(request, 2, numpy.int64) if graph.selects else None
        first = graph.num_inputs
        self._features = InputTensor(request, first - 1, numpy.float32) if graph.features else None
        self._feature_size = graph.features
        (
            self._lengths,
            self._begins,
            self._of_rows,
            self._row_begins,
            self._longest,
            self._bias,
            self._bias_begins,
        ) = (
            InputTensor(request, first + index, numpy.uint8 if dtype == torch.uint8 else numpy.int32)
            for index, (_, dtype) in enumerate(PAGED_INPUTS)
        )
        self._bias.take(0)
        self._bias_begins.take(0)
        first += len(PAGED_INPUTS)
        planes = [plane for storage in cache.storages for plane in storage]
        for index, plane in enumerate(planes):
            request.set_input_tensor(first + index, shared(plane))
        first += len(planes)
        self._count = cache.position_ids
        tables = rotations.tables(len(self._count))
        self._lookups = [
            (lookup, table.numpy(), InputTensor(request, first + index, numpy.float32))
            for index, (lookup, table) in enumerate(zip(rotations.lookups, tables, strict=True))
        ]
        self._frame = TokenInputs(0, self._count[:0], self._count[:0], [])
        self._rows: tuple[int, ...] = ()  # slots of the last inference
        self._version = -1  # version of the block tables in the last inference
        self._kept: tuple[int, int] | None = (
            None  # (logits, padded tokens) of the last inference if it requested all tokens' logits
        )
        self._sizes = policy.sizes
        self._choice = SizeChoice(policy)

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
        sizes = [len(part.tokens) for part in parts]
        total = sum(sizes)
        size = self._choice.take(total) if size is None else size
        self._write(parts, total, size)
        sizes[-1] += size - total  # padding tokens follow the tokens of the last row
        self._write_cache_positions(parts, sizes)
        if any(part.seen is not None for part in parts):
            self._write_mask(parts, sizes)
        elif self._bias.array.size:
            self._bias.take(0)
            self._bias_begins.take(0)
        if self._features is not None:
            self._write_features(self._features.take(1, size, self._feature_size)[0], parts, total)
        requested = self._requested(parts, total)
        self._select_logits(requested if logits else self._count[:1], total, size)
        # in the calling thread: waking another takes as long as a small draft model's forward
        self._infer.infer(share_outputs=True)
        scores = None
        if logits:
            selected = None if self._keep is not None else requested
            scores = self._output(0, selected, total if requested is None else len(requested))
        found = {
            layer: self._output(index, requested, total)
            for index, layer in enumerate(self._layers, 1)
            if layer in hidden
        }
        return ForwardOutputs(scores, found, computed=size)

    def _output(self, index: int, selected: Array | None, num: int) -> Tensor:  # (num or selected, ...)
        """A copy of an output at the `selected` tokens, or at the first `num`: the next inference overwrites
        the memory."""
        output = torch.from_numpy(self._infer.get_output_tensor(index).data)[0]
        return output[:num].clone() if selected is None else output[torch.from_numpy(selected)]

    def _write(self, parts: Sequence[RowTokens], total: int, size: int) -> None:
        """Write token ids, position ids, and the values that are looked up by position id."""
        frame = self._frame
        if size != frame.size:
            frame = self._frame = self._token_inputs(size)
        ids, positions = frame.ids, frame.positions
        ids[total:] = 0
        if len(parts) == 1 and parts[0].seen is None:  # position ids are cache positions
            start = parts[0].start
            ids[:total] = parts[0].tokens
            positions[:] = self._count[start : start + size]
            for table, values in frame.lookups:
                values[:] = table[start : start + size]
            return
        at = 0
        for part in parts:
            end = at + len(part.tokens)
            ids[at:end], positions[at:end] = part.tokens, part.positions
            at = end
        positions[at:] = positions[at - 1]
        for table, values in frame.lookups:
            values[:] = table[positions]

    def _token_inputs(self, size: int) -> TokenInputs:
        """Set the input tensors to this size; returns their views."""
        lookups = []
        for lookup, table, feed in self._lookups:
            shape = list(table.shape[1:])
            for axis, length in sorted(zip(lookup.axes, (1, size), strict=True)):
                shape.insert(axis, length)
            lookups.append((table, numpy.moveaxis(feed.take(*shape), lookup.axes, (0, 1))[0]))
        return TokenInputs(size, self._ids.take(1, size)[0], self._positions.take(1, size)[0], lookups)

    def _write_cache_positions(self, parts: Sequence[RowTokens], sizes: list[int]) -> None:
        """Write the inputs of paged attention: each row's blocks, number of tokens in the cache (lengths) and
        index of its first token (begins). `sizes`: tokens per row, padding included."""
        rows, tables = tuple([part.slot for part in parts]), self._tables
        if rows != self._rows or tables.version != self._version:
            self._rows, self._version = rows, tables.version
            blocks = tables.array.shape[1]
            self._of_rows.take(len(rows) * blocks)[:] = tables.array[list(rows)].ravel()
            self._row_begins.take(len(rows) + 1)[:] = numpy.arange(len(rows) + 1) * blocks
        lengths, begins = self._lengths.take(len(rows)), self._begins.take(len(rows) + 1)
        begins[0] = end = longest = 0
        for index, (part, num) in enumerate(zip(parts, sizes, strict=True)):
            end += num
            lengths[index], begins[index + 1] = part.start, end
            longest = max(longest, part.start + num)
        self._longest.take()[...] = longest

    def _write_mask(self, parts: Sequence[RowTokens], sizes: list[int]) -> None:
        """Write the attention mask among the tokens of this inference, one square per row."""
        areas = [num * num for num in sizes]
        bias, begins = self._bias.take(sum(areas)), self._bias_begins.take(len(parts) + 1)
        begins[0] = end = 0
        for index, (part, num, area) in enumerate(zip(parts, sizes, areas, strict=True)):
            square = bias[end : end + area].reshape(num, num)
            if part.seen is None:
                square[:] = numpy.tri(num, dtype=numpy.uint8)
            else:
                read = len(part.seen)
                square[:] = 1  # padding tokens attend to all tokens, and no other token attends to them
                square[:read, read:] = 0
                square[:read, :read] = part.seen
            end += area
            begins[index + 1] = end

    def _write_features(self, features: Array, parts: Sequence[RowTokens], total: int) -> None:  # (N, D)
        at = 0
        for part in parts:
            assert part.features is not None
            end = at + len(part.tokens)
            features[at:end] = part.features
            at = end
        features[total:] = 0

    def _requested(self, parts: Sequence[RowTokens], total: int) -> Array | None:
        """Indices of the tokens whose outputs are requested; None: the first `total` tokens."""
        if sum([part.num for part in parts]) == total:
            return None
        ends = numpy.cumsum([len(part.tokens) for part in parts])
        return numpy.concatenate([self._count[end - p.num : end] for p, end in zip(parts, ends, strict=True)])

    def _select_logits(self, kept: Array | None, total: int, size: int) -> None:
        """Write the input that selects the tokens whose logits are computed, padded to one of the sizes.
        `kept`: their indices; None: the first `total` tokens."""
        if self._keep is None or (kept is None and self._kept == (total, size)):
            return
        num = total if kept is None else len(kept)
        keep = self._keep.take(max(1, min(size, next((each for each in self._sizes if each >= num), size))))
        self._kept = (total, size) if kept is None else None
        if kept is None:
            keep[:] = self._count[: len(keep)]
        else:
            keep[num:], keep[:num] = 0, kept


def row_tokens_of(
    row: RowInputs, tokens: Tensor, num: int, cache: PagedCache, features: Tensor | None = None
) -> list[RowTokens]:
    """The tokens of one row of a forward, also stored in `cache.tokens`. Nodes of a tree that are in the KV
    cache already are computed again together with the new nodes. If the committed tokens before a tree do not
    fit into one inference with it, the first of them are a chain for an inference of its own."""
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
    """Features of the row's gap and of all nodes of its tree so far: `features`, those of its new tokens,
    after those of the nodes before them."""
    if row.start > row.base:
        features = numpy.concatenate((cache.features[row.slot][: row.start - row.base], features))
    cache.features[row.slot] = features[max(0, row.base - row.start) :]
    return features
