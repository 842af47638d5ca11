"""OpenVINO inference requests over rows of one paged KV cache, and their input tensors.

The tokens of all rows are concatenated and padded to one of a few sizes: the first inference of a size is
slow, and so is a change of size.

Letters: R rows, N tokens of all rows, n tokens of one row, T cache positions, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from outpace.models.hf.forward_inputs import RowInputs
from outpace.models.openvino.export import TracedModel
from outpace.models.openvino.paged_attention import PAGED_INPUTS
from outpace.models.openvino.paged_cache import PagedCache
from outpace.models.openvino.rotary import PositionTables
from outpace.models.openvino.runtime import InputTensor, shared

# padded numbers of tokens of an inference: plain decoding, chains of five and of ten, trees, chunks of
# prompts; larger sizes are multiples of the last
SIZES = (1, 6, 11, 16, 32, 64)
MAX_PADDING = (
    32  # padding tokens, summed over inferences that would fit a smaller size, before a change to it
)


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
    num: int  # number of tokens, counted from the last, whose logits are requested


@dataclass(eq=False, slots=True)
class TokenInputs:
    """Views of the input tensors of one size that are filled from token ids and position ids."""

    size: int  # number of tokens, padding included
    ids: Array  # (N,)
    positions: Array  # (N,)
    lookups: list[tuple[Array, Array]]  # table of values by position id (T, ...), input tensor (N, ...)


class InferRequest:
    """An OpenVINO inference request for one KV cache; its input tensors are reused by all inferences."""

    def __init__(self, model: Any, cache: PagedCache, graph: TracedModel, rotations: PositionTables) -> None:
        # no reference to the cache, which owns this object: a cycle would delay freeing the memory
        self._infer = request = model.create_infer_request()
        self._tables = cache.tables
        self._ids, self._positions = (InputTensor(request, index, numpy.int64) for index in (0, 1))
        self._keep = InputTensor(request, 2, numpy.int64) if graph.selects else None
        first = 2 + graph.selects
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
        self._size = self._waste = 0

    def read(self, parts: Sequence[RowTokens], logits: bool) -> Tensor | None:  # (requested tokens, V)
        """Run one inference over the rows' tokens; returns the requested logits, row by row, or None."""
        sizes = [len(part.tokens) for part in parts]
        total = sum(sizes)
        size = self._padded_size(total)
        self._write(parts, total, size)
        sizes[-1] += size - total  # padding tokens follow the tokens of the last row
        self._write_cache_positions(parts, sizes)
        if any(part.seen is not None for part in parts):
            self._write_mask(parts, sizes)
        elif self._bias.array.size:
            self._bias.take(0)
            self._bias_begins.take(0)
        wanted = self._select_logits(parts, total, size)
        # in the calling thread: waking another takes as long as a small draft model's forward
        self._infer.infer(share_outputs=True)
        if not logits:
            return None
        # memory that the next inference overwrites
        scores = torch.from_numpy(self._infer.get_output_tensor(0).data)[0]
        if wanted is None:
            return scores[:total].clone()
        return scores[: len(wanted)].clone() if self._keep is not None else scores[torch.from_numpy(wanted)]

    @property
    def size(self) -> int:
        """Number of tokens of the last inference, padding included."""
        return self._size

    def _padded_size(self, total: int) -> int:
        fit = next((size for size in SIZES if size >= total), -(-total // SIZES[-1]) * SIZES[-1])
        self._waste = self._waste + self._size - fit if fit < self._size else 0
        if fit > self._size or self._waste > MAX_PADDING:
            self._size, self._waste = fit, 0
        return self._size

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

    def _select_logits(
        self, parts: Sequence[RowTokens], total: int, size: int
    ) -> Array | None:  # indices of the tokens; None: the first `total` tokens
        """Write the input that selects the tokens whose logits are computed, padded to one of the sizes;
        returns their indices."""
        num = sum([part.num for part in parts])
        kept: Array | None = None
        if num < total:
            ends = numpy.cumsum([len(part.tokens) for part in parts])
            kept = numpy.concatenate(
                [self._count[end - p.num : end] for p, end in zip(parts, ends, strict=True)]
            )
        elif self._kept == (num, size):
            return None
        if self._keep is None:
            return kept
        keep = self._keep.take(max(1, min(size, next((each for each in SIZES if each >= num), size))))
        self._kept = None if num < total else (num, size)
        if kept is None:
            keep[:] = self._count[: len(keep)]
        else:
            keep[num:], keep[:num] = 0, kept
        return kept


def row_tokens_of(row: RowInputs, tokens: Tensor, num: int, cache: PagedCache) -> list[RowTokens]:
    """The tokens of one row of a forward, also stored in `cache.tokens`. Nodes of a tree that are in the KV
    cache already are computed again together with the new nodes. If the committed tokens before a tree do not
    fit into one inference with it, the first of them are a chain for an inference of its own."""
    own, position_ids = cache.tokens[row.slot], cache.position_ids
    own[row.start : row.end] = numbers = tokens.numpy()
    if row.depths is None or row.visible is None:
        return [RowTokens(row.slot, row.start, numbers, position_ids[row.start : row.end], None, num)]
    size, gap, chain = len(row.depths), max(0, row.base - row.start), list[RowTokens]()
    if alone := min(gap, max(0, gap + size - SIZES[-1])):
        part = slice(row.start, row.start + alone)
        chain.append(RowTokens(row.slot, row.start, own[part], position_ids[part], None, 0))
        gap -= alone
    start, positions, seen = row.base - gap, row.depths.numpy() + row.base, row.visible.numpy()
    if gap:
        positions = numpy.concatenate((position_ids[start : row.base], positions))
        seen = numpy.tri(len(positions), dtype=numpy.bool_)
        seen[gap:, gap:] = row.visible.numpy()
    return [*chain, RowTokens(row.slot, start, own[start : row.end], positions, seen, num)]
