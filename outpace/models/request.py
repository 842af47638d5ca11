"""Inference over rows of one cache: where its inputs come from.

The tokens of all rows stand one after the other, filled up to one of a few sizes: the runtime prepares itself anew for
every size it meets, and changes from one to another at some cost.

Letters: R rows, N tokens of all rows, n of one row, T places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outpace.models.export import Graph
from outpace.models.paged import PagedCache
from outpace.models.paged_attention import PLACES
from outpace.models.reading import RowReading
from outpace.models.rotations import Rotations
from outpace.models.runtime import Feed, found, shared

SIZES = (1, 8, 16, 32, 64, 128)  # of forwards, in tokens; larger ones are multiples of the last
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
        self._ids, self._positions = (Feed(request, index, torch.int64) for index in (0, 1))
        self._keep = Feed(request, 2, torch.int64) if graph.selects else None
        first = 2 + graph.selects
        lengths, begins, blocks, block_begins, _, bias, bias_begins = (first + index for index in range(len(PLACES)))
        self._lengths, self._begins, self._of_rows, self._row_begins, self._bias_begins = (
            Feed(request, index, torch.int32) for index in (lengths, begins, blocks, block_begins, bias_begins)
        )
        self._longest = torch.zeros((), dtype=torch.int32)
        request.set_input_tensor(first + 4, shared(self._longest))
        self._bias = Feed(request, bias, torch.uint8)
        self._bias.take(0)
        self._bias_begins.take(0)
        first += len(PLACES)
        planes = [plane.flatten(0, 1) for storage in cache.storages for plane in storage]
        for index, plane in enumerate(planes):
            request.set_input_tensor(first + index, shared(plane))
        first += len(planes)
        tables = rotations.tables(len(cache.count))
        self._lookups = [
            (lookup, table, Feed(request, first + index, torch.float32))
            for index, (lookup, table) in enumerate(zip(rotations.lookups, tables, strict=True))
        ]
        self._rows: tuple[int, ...] = ()  # slots that are read now
        self._size = self._waste = 0

    def read(self, parts: Sequence[Part], logits: bool) -> Tensor | None:  # (wanted of all parts, V)
        """One inference."""
        sizes = [len(part.tokens) for part in parts]
        total = sum(sizes)
        size = self._size_for(total)
        ids, positions = self._ids.take(1, size)[0], self._positions.take(1, size)[0]
        at = 0
        for part, num in zip(parts, sizes, strict=True):
            ids[at : at + num] = part.tokens
            positions[at : at + num] = part.positions
            at += num
        if at < size:  # more tokens of the last row, behind all others
            ids[at:] = 0
            positions[at:] = parts[-1].start + sizes[-1] - 1
        for lookup, table, feed in self._lookups:
            values = table[positions[None]].movedim((0, 1), lookup.axes)
            feed.take(*values.shape).copy_(values)
        sizes[-1] += size - total
        self._place(parts, sizes)
        if any(part.seen is not None for part in parts):
            self._show(parts, sizes)
        elif self._bias.size:
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

    def _place(self, parts: Sequence[Part], sizes: list[int]) -> None:
        """Say where each row stands in the cache."""
        rows = tuple(part.slot for part in parts)
        if rows != self._rows:
            self._rows = rows
            self._lengths.take(len(rows))
            self._begins.take(len(rows) + 1)[0] = 0
            own = torch.arange(self._blocks)
            self._of_rows.take(len(rows) * self._blocks).copy_(torch.cat([own + row * self._blocks for row in rows]))
            self._row_begins.take(len(rows) + 1).copy_(torch.arange(len(rows) + 1) * self._blocks)
        lengths, begins = self._lengths.values, self._begins.values
        end = longest = 0
        for index, (part, num) in enumerate(zip(parts, sizes, strict=True)):
            end += num
            lengths[index], begins[index + 1] = part.start, end
            longest = max(longest, part.start + num)
        self._longest.fill_(longest)

    def _show(self, parts: Sequence[Part], sizes: list[int]) -> None:
        """Say which of the tokens read together see each other."""
        areas = [num * num for num in sizes]
        bias = self._bias.take(sum(areas))
        begins = self._bias_begins.take(len(parts) + 1)
        begins[0] = end = 0
        for index, (part, num, area) in enumerate(zip(parts, sizes, areas, strict=True)):
            square = bias[end : end + area].view(num, num)
            if part.seen is None:
                square.fill_(1).tril_()
            else:
                read = len(part.seen)
                square.fill_(1)  # what fills up sees everything, and is seen by nothing
                square[:read, read:] = 0
                square[:read, :read] = part.seen
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
        room = next((each for each in SIZES if each >= num), size)
        keep = self._keep.take(max(1, min(room, size)))
        if kept is None:
            torch.arange(len(keep), out=keep)
        else:
            keep[num:] = 0
            keep[:num] = kept
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
