"""Inference over rows of one cache: where its inputs come from.

The tokens of all rows stand one after the other, filled up to one of a few sizes: the runtime prepares itself anew for
every size it meets, and changes from one to another at some cost.

Letters: R rows, N tokens of all rows, n of one row, T places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from outpace.models.export import Graph
from outpace.models.paged import PagedCache
from outpace.models.paged_attention import PLACES
from outpace.models.reading import RowReading
from outpace.models.rotations import Rotations
from outpace.models.runtime import Feed, found, shared

# of forwards, in tokens: a token, a root with the usual drafts of five and of ten, trees, pieces of prompts; larger
# ones are multiples of the last
SIZES = (1, 6, 11, 16, 32, 128)
WASTE = 32  # tokens to fill up with, over all forwards since the size was needed, that cost less than a change of size


@dataclass(eq=False, slots=True)
class Part:
    """Tokens of one row that are read in one forward."""

    slot: int
    start: int  # the place of the first
    tokens: Tensor  # (n,)
    positions: Tensor  # (n,)
    seen: Tensor | None  # (n, n) bool, which of them each sees; None: those in front of it
    num: int  # how many of them, from the last, results are wanted for


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
        self._lengths, self._begins, self._of_rows, self._row_begins, self._longest, self._bias, self._bias_begins = (
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
        self._count = cache.count.numpy()
        tables = rotations.tables(len(self._count))
        self._lookups = [
            (lookup, table.numpy(), Feed(request, first + index, numpy.float32))
            for index, (lookup, table) in enumerate(zip(rotations.lookups, tables, strict=True))
        ]
        self._rows: tuple[int, ...] = ()  # slots that are read now
        self._kept: tuple[int, int] | None = None  # the logits asked for last: the first so many, in so many places
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
        self._infer.infer({}, share_outputs=True)  # in this thread: to wake another takes as long as a small draft
        if not logits:
            return None
        scores = found(self._infer, 0, torch.float32)[0]
        if wanted is None:
            return scores[:total].clone()
        return scores[: len(wanted)].clone() if self._keep is not None else scores[wanted]

    def _size_for(self, total: int) -> int:
        fit = next((size for size in SIZES if size >= total), -(-total // SIZES[-1]) * SIZES[-1])
        self._waste = self._waste + self._size - fit if fit < self._size else 0
        if fit > self._size or self._waste > WASTE:
            self._size, self._waste = fit, 0
        return self._size

    def _write(self, parts: Sequence[Part], total: int, size: int) -> None:
        """Put tokens in, and what depends on their positions."""
        ids, positions = self._ids.take(1, size)[0], self._positions.take(1, size)[0]
        ids[total:] = 0
        if len(parts) == 1 and parts[0].seen is None:  # places are positions
            start = parts[0].start
            ids[:total] = parts[0].tokens.numpy()
            positions[:] = self._count[start : start + size]
            for lookup, table, feed in self._lookups:
                shape = list(table.shape[1:])
                for axis, length in sorted(zip(lookup.axes, (1, size), strict=True)):
                    shape.insert(axis, length)
                numpy.moveaxis(feed.take(*shape), lookup.axes, (0, 1))[0] = table[start : start + size]
            return
        at = 0
        for part in parts:
            end = at + len(part.tokens)
            ids[at:end], positions[at:end] = part.tokens.numpy(), part.positions.numpy()
            at = end
        positions[at:] = positions[at - 1]
        for lookup, table, feed in self._lookups:
            values = numpy.moveaxis(table[positions[None]], (0, 1), lookup.axes)
            feed.take(*values.shape)[...] = values

    def _place(self, parts: Sequence[Part], sizes: list[int]) -> None:
        """Say where each row stands in the cache."""
        rows = tuple(part.slot for part in parts)
        if rows != self._rows:
            self._rows = rows
            own = numpy.arange(self._blocks)
            self._of_rows.take(len(rows) * self._blocks)[:] = numpy.concatenate([own + r * self._blocks for r in rows])
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
                square[:read, :read] = part.seen.numpy()
            end += area
            begins[index + 1] = end

    def _want(self, parts: Sequence[Part], total: int, size: int) -> Tensor | None:  # which tokens; None: the first
        """Ask for the logits that are wanted, and for as many more as fill up one of the sizes."""
        num = sum(part.num for part in parts)
        kept: Tensor | None = None
        if num < total:
            runs, at = [], 0
            for part in parts:
                at += len(part.tokens)
                runs.append(torch.arange(at - part.num, at))
            kept = torch.cat(runs)
        if self._keep is None:
            return kept
        room = max(1, min(size, next((each for each in SIZES if each >= num), size)))
        if kept is None:
            if self._kept != (num, room):
                self._keep.take(room)[:] = self._count[:room]
        else:
            keep = self._keep.take(room)
            keep[num:], keep[:num] = 0, kept.numpy()
        self._kept = (num, room) if kept is None else None
        return kept


def part_of(row: RowReading, tokens: Tensor, num: int, cache: PagedCache) -> Part:
    """What is read of a row: nodes of a tree that were read before are read again with those that see them."""
    cache.tokens[row.slot, row.start : row.end] = tokens
    if row.depths is None or row.visible is None:
        return Part(row.slot, row.start, tokens, cache.count[row.start : row.end], None, num)
    start, gap = min(row.start, row.base), max(0, row.base - row.start)
    positions = row.depths + row.base
    seen = row.visible
    if gap:
        positions = torch.cat((cache.count[row.start : row.base], positions))
        seen = torch.ones(len(positions), len(positions), dtype=torch.bool).tril_()
        seen[gap:, gap:] = row.visible
    return Part(row.slot, start, cache.tokens[row.slot, start : row.end], positions, seen, num)
