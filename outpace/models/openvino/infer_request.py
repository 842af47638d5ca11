"""Inference over rows of one cache: where its inputs come from.

The tokens of all rows stand one after the other, filled up to one of a few sizes: the runtime prepares itself
anew for every size it meets, and changes from one to another at some cost.

Letters: R rows, N tokens of all rows, n of one row, T places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from outpace.models.hf.forward_inputs import RowInputs
from outpace.models.openvino.export import Graph
from outpace.models.openvino.paged_attention import PLACES
from outpace.models.openvino.paged_cache import PagedCache
from outpace.models.openvino.rotary import Rotations
from outpace.models.openvino.runtime import Feed, shared

# of forwards, in tokens: a token, a root with the usual drafts of five and of ten, trees, pieces of prompts;
# larger ones are multiples of the last
SIZES = (1, 6, 11, 16, 32, 64)
WASTE = 32  # tokens to fill up with, over all forwards since the size was needed, that cost less than a change of size


Numbers = numpy.ndarray[
    Any, Any
]  # on the way to the runtime: between two forwards every call into torch shows


@dataclass(eq=False, slots=True)
class Part:
    """Tokens of one row that are read in one forward."""

    slot: int
    start: int  # the place of the first
    tokens: Numbers  # (n,)
    positions: Numbers  # (n,)
    seen: Numbers | None  # (n, n) bool, which of them each sees; None: those in front of it
    num: int  # how many of them, from the last, results are wanted for


@dataclass(eq=False, slots=True)
class Frame:
    """Where a forward of some size takes what depends on its tokens and their positions."""

    size: int
    ids: Numbers  # (N,)
    positions: Numbers  # (N,)
    lookups: list[tuple[Numbers, Numbers]]  # values of every position (T, ...), those of the forward (N, ...)


class Request:
    """An inference request for one cache; its inputs stay where they are from one forward to the next."""

    def __init__(self, model: Any, cache: PagedCache, graph: Graph, rotations: Rotations) -> None:
        # nothing here may hold the cache itself: whoever has the request holds it by the cache, weakly
        self._infer = request = model.create_infer_request()
        self.storages = cache.storages  # for which this is
        self._blocks = cache.blocks
        self._ids, self._positions = (Feed(request, index, numpy.int64) for index in (0, 1))
        self._keep = Feed(request, 2, numpy.int64) if graph.selects else None
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
            Feed(request, first + index, numpy.uint8 if dtype == torch.uint8 else numpy.int32)
            for index, (_, dtype) in enumerate(PLACES)
        )
        self._bias.take(0)
        self._bias_begins.take(0)
        first += len(PLACES)
        planes = [plane.flatten(0, 1) for storage in cache.storages for plane in storage]
        for index, plane in enumerate(planes):
            request.set_input_tensor(first + index, shared(plane))
        first += len(planes)
        self._count = cache.places
        tables = rotations.tables(len(self._count))
        self._lookups = [
            (lookup, table.numpy(), Feed(request, first + index, numpy.float32))
            for index, (lookup, table) in enumerate(zip(rotations.lookups, tables, strict=True))
        ]
        self._frame = Frame(0, self._count[:0], self._count[:0], [])
        self._rows: tuple[int, ...] = ()  # slots that are read now
        self._kept: tuple[int, int] | None = (
            None  # the logits asked for last: the first so many, of so many tokens
        )
        self._size = self._waste = 0

    def read(self, parts: Sequence[Part], logits: bool) -> Tensor | None:  # (wanted of all parts, V)
        """One inference."""
        sizes = [len(part.tokens) for part in parts]
        total = sum(sizes)
        size = self._size_for(total)
        self._write(parts, total, size)
        sizes[-1] += size - total  # what fills up are more tokens of the last row, behind all others
        self._place(parts, sizes)
        if any(part.seen is not None for part in parts):
            self._show(parts, sizes)
        elif self._bias.array.size:
            self._bias.take(0)
            self._bias_begins.take(0)
        wanted = self._want(parts, total, size)
        self._infer.infer(
            share_outputs=True
        )  # in this thread: to wake another takes as long as a small draft
        if not logits:
            return None
        scores = torch.from_numpy(self._infer.get_output_tensor(0).data)[
            0
        ]  # the next inference writes over it
        if wanted is None:
            return scores[:total].clone()
        return scores[: len(wanted)].clone() if self._keep is not None else scores[torch.from_numpy(wanted)]

    def _size_for(self, total: int) -> int:
        fit = next((size for size in SIZES if size >= total), -(-total // SIZES[-1]) * SIZES[-1])
        self._waste = self._waste + self._size - fit if fit < self._size else 0
        if fit > self._size or self._waste > WASTE:
            self._size, self._waste = fit, 0
        return self._size

    def _write(self, parts: Sequence[Part], total: int, size: int) -> None:
        """Put tokens in, and what depends on their positions."""
        frame = self._frame
        if size != frame.size:
            frame = self._frame = self._framed(size)
        ids, positions = frame.ids, frame.positions
        ids[total:] = 0
        if len(parts) == 1 and parts[0].seen is None:  # places are positions
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

    def _framed(self, size: int) -> Frame:
        """Inputs of this size."""
        lookups = []
        for lookup, table, feed in self._lookups:
            shape = list(table.shape[1:])
            for axis, length in sorted(zip(lookup.axes, (1, size), strict=True)):
                shape.insert(axis, length)
            lookups.append((table, numpy.moveaxis(feed.take(*shape), lookup.axes, (0, 1))[0]))
        return Frame(size, self._ids.take(1, size)[0], self._positions.take(1, size)[0], lookups)

    def _place(self, parts: Sequence[Part], sizes: list[int]) -> None:
        """Say where each row stands in the cache."""
        rows = tuple(part.slot for part in parts)
        if rows != self._rows:
            self._rows = rows
            own = numpy.arange(self._blocks)
            self._of_rows.take(len(rows) * self._blocks)[:] = numpy.concatenate(
                [own + r * self._blocks for r in rows]
            )
            self._row_begins.take(len(rows) + 1)[:] = numpy.arange(len(rows) + 1) * self._blocks
        lengths, begins = self._lengths.take(len(rows)), self._begins.take(len(rows) + 1)
        begins[0] = end = longest = 0
        for index, (part, num) in enumerate(zip(parts, sizes, strict=True)):
            end += num
            lengths[index], begins[index + 1] = part.start, end
            longest = max(longest, part.start + num)
        self._longest.take()[...] = longest

    def _show(self, parts: Sequence[Part], sizes: list[int]) -> None:
        """Say which of the tokens read together see each other."""
        areas = [num * num for num in sizes]
        bias, begins = self._bias.take(sum(areas)), self._bias_begins.take(len(parts) + 1)
        begins[0] = end = 0
        for index, (part, num, area) in enumerate(zip(parts, sizes, areas, strict=True)):
            square = bias[end : end + area].reshape(num, num)
            if part.seen is None:
                square[:] = numpy.tri(num, dtype=numpy.uint8)
            else:
                read = len(part.seen)
                square[:] = 1  # what fills up sees everything, and is seen by nothing
                square[:read, read:] = 0
                square[:read, :read] = part.seen
            end += area
            begins[index + 1] = end

    def _want(
        self, parts: Sequence[Part], total: int, size: int
    ) -> Numbers | None:  # which tokens; None: the first
        """Ask for the logits that are wanted, and for as many more as fill up one of the sizes."""
        num = sum([part.num for part in parts])
        kept: Numbers | None = None
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


def part_of(row: RowInputs, tokens: Tensor, num: int, cache: PagedCache) -> Part:
    """What is read of a row: nodes of a tree that were read before are read again with those that see
    them."""
    own, places = cache.tokens[row.slot], cache.places
    own[row.start : row.end] = numbers = tokens.numpy()
    if row.depths is None or row.visible is None:
        return Part(row.slot, row.start, numbers, places[row.start : row.end], None, num)
    start, gap = min(row.start, row.base), max(0, row.base - row.start)
    positions, seen = row.depths.numpy() + row.base, row.visible.numpy()
    if gap:
        positions = numpy.concatenate((places[row.start : row.base], positions))
        seen = numpy.tri(len(positions), dtype=numpy.bool_)
        seen[gap:, gap:] = row.visible.numpy()
    return Part(row.slot, start, own[start : row.end], positions, seen, num)
