"""Inference over rows of one cache: where its inputs come from and where its outputs go.

One row's keys and values go in where they lie. Those of several are copied side by side, and their tokens are padded in
front to the longest row's.

Letters: R rows, n tokens of the longest, T places read of each, P planes of one shape, S slots, H heads, D head size,
V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from outpace.models.export import Kind
from outpace.models.found import Found
from outpace.models.kv import STRIP, SlotCache
from outpace.models.reading import Reading, RowMask, RowReading
from outpace.models.rotations import Rotations
from outpace.models.runtime import Feed, found, shared

STEP = 64  # places by which what is read of a row grows
HIDDEN = -1e30  # added to the score of what is not seen; finite in bfloat16 too, so that no row is all infinite


class Request:
    """An inference request for one cache; its inputs stay where they are from one forward to the next."""

    def __init__(
        self, model: Any, cache: SlotCache, kinds: tuple[Kind, ...], rotations: Rotations, *, selects: bool
    ) -> None:
        # nothing here may hold the cache itself: whoever has the request holds it by the cache, weakly
        self._infer = request = model.create_infer_request()
        self._ids, self._positions = (Feed(request, index, torch.int64) for index in (0, 1))
        self._keep = Feed(request, 2, torch.int64) if selects else None
        first = 2 + selects
        self._masks = [Feed(request, first + index, torch.float32) for index in range(len(kinds))]
        self._kinds, self._first = kinds, first + len(kinds)
        self.storages = cache.storages  # for which this is
        self._storages = [storage.transpose(2, 3) for storage in cache.storages]  # (P, S, T, H, D)
        last = self._first + sum(map(len, self._storages))
        self._lookups = [
            (lookup, table, Feed(request, last + index, torch.float32))
            for index, (lookup, table) in enumerate(
                zip(rotations.lookups, rotations.tables(cache.capacity), strict=True)
            )
        ]
        self._rows: dict[int, list[Any]] = {}  # slot -> its keys and values as the runtime's tensors, P of each storage
        self._bound: list[Any] = []  # what the request has now
        self._extent = (0, 0)  # of how many rows and places
        self._copies = [torch.empty(len(storage), 0, dtype=storage.dtype) for storage in self._storages]
        self._copied: list[Any] = []
        self._capacity = cache.capacity
        self._triangle = torch.full((STRIP, STRIP), HIDDEN).triu_(1)

    def alone(self, cache: SlotCache, row: RowReading, num: int, tokens: Tensor, logits: bool) -> Found:
        """One row; found for its last `num` tokens."""
        start, end = row.start, row.end
        size, past = end - start, self._past_of(start)
        if row.slot not in self._rows:
            planes = [plane for storage in self._storages for plane in storage[:, row.slot : row.slot + 1]]
            self._rows[row.slot] = [shared(plane) for plane in planes]
        self._bind(self._rows[row.slot], 1, past)
        reading = Reading(cache, [row])
        self._ids.take(1, size).copy_(tokens)
        positions = reading.query_positions(row)
        self._positions.take(1, size).copy_(positions)
        self._look_up(positions[None])
        for kind, feed in zip(self._kinds, self._masks, strict=True):
            (mask,) = reading.masks(kind.rule, kind.reach, tokens.device)
            self._fill(feed.take(1, 1, size, past + size)[0, 0], mask, start)
        scores = self._run(cache, size, num if logits else 1)
        for storage, stored in zip(self._storages, self._stored(), strict=True):
            storage[:, row.slot, start:end].copy_(stored[:, 0])
        return Found(scores[0, -num:].clone() if logits else None)

    def together(
        self, cache: SlotCache, rows: list[RowReading], nodes: list[int], tokens: list[Tensor], logits: bool
    ) -> list[Found]:
        """Several rows, found for the last `nodes` tokens of each."""
        sizes = [row.end - row.start for row in rows]
        size, past = max(sizes), self._past_of(max(row.start for row in rows))
        self._copy(rows, past)
        reading = Reading(cache, rows)
        ids = self._ids.take(len(rows), size).zero_()
        positions = self._positions.take(len(rows), size).zero_()
        for index, (row, part) in enumerate(zip(rows, tokens, strict=True)):
            ids[index, size - sizes[index] :] = part
            positions[index, size - sizes[index] :] = reading.query_positions(row)
        self._look_up(positions)
        for kind, feed in zip(self._kinds, self._masks, strict=True):
            # padding in front of a row sees everything, so that nothing is undefined, and is seen by nobody
            values = feed.take(len(rows), 1, size, past + size).zero_()[:, 0]
            for index, (row, mask) in enumerate(
                zip(rows, reading.masks(kind.rule, kind.reach, ids.device), strict=True)
            ):
                self._fill(values[index, size - sizes[index] :], mask, row.start)
        scores = self._run(cache, size, max(nodes) if logits else 1)
        for storage, stored in zip(self._storages, self._stored(), strict=True):
            for index, row in enumerate(rows):
                storage[:, row.slot, row.start : row.end] = stored[:, index, size - sizes[index] :]
        if not logits:
            return [Found(None) for _ in rows]
        scores = scores.clone()
        return [Found(scores[index, scores.shape[1] - num :]) for index, num in enumerate(nodes)]

    def _look_up(self, positions: Tensor) -> None:  # (R, n)
        for lookup, table, feed in self._lookups:
            values = table[positions].movedim((0, 1), lookup.axes)
            feed.take(*values.shape).copy_(values)

    def _run(self, cache: SlotCache, size: int, num: int) -> Tensor:  # (R, n or num, V), until the next run
        if self._keep is not None:
            self._keep.take(num).copy_(cache.count[size - num : size])
        self._infer.start_async()  # `infer` would make arrays of all outputs
        self._infer.wait()
        return found(self._infer, 0, torch.float32)

    def _stored(self) -> list[Tensor]:  # (P, R, n, H, D) for each storage, until the next run
        return [found(self._infer, 1 + index, storage.dtype) for index, storage in enumerate(self._storages)]

    def _bind(self, past: list[Any], rows: int, length: int) -> None:
        """Make these the keys and values that are read, as far as `length`."""
        if past is self._bound and (rows, length) == self._extent:
            return
        at = 0
        for storage in self._storages:
            shape = [rows, length, *storage.shape[3:]]
            for tensor in past[at : at + len(storage)]:
                tensor.shape = shape
            at += len(storage)
        if past is not self._bound:
            for index, tensor in enumerate(past):
                self._infer.set_input_tensor(self._first + index, tensor)
        self._bound, self._extent = past, (rows, length)

    def _copy(self, rows: list[RowReading], length: int) -> None:
        """Copy the rows' keys and values side by side, each padded at the end."""
        for index, storage in enumerate(self._storages):
            heads, depth = storage.shape[3:]
            size = len(rows) * length * heads * depth
            if self._copies[index].shape[1] < size or not self._copied:
                # zeros: what is masked is multiplied by 0, and 0 times an uninitialised NaN is NaN
                self._copies[index] = torch.zeros(len(storage), max(1, 2 * size), dtype=storage.dtype)
                self._copied = []
            side = self._copies[index][:, :size].view(len(storage), len(rows), length, heads, depth)
            for place, row in enumerate(rows):
                side[:, place, : row.start].copy_(storage[:, row.slot, : row.start])
        if not self._copied:
            self._copied = [shared(plane) for copies in self._copies for plane in copies]
        self._bind(self._copied, len(rows), length)

    def _past_of(self, length: int) -> int:
        """How many places to read where so many are kept: the runtime prepares itself anew for every size it meets."""
        step = max(STEP, STEP << max(0, length.bit_length() - 9))  # an eighth at most beyond 512
        return min(-(-length // step) * step, self._capacity)

    def _fill(self, values: Tensor, mask: RowMask, start: int) -> None:  # (n, T + n)
        """Write what a row may see, as numbers to add to scores; its own n tokens are the last columns."""
        size, width = values.shape
        values[:, start : width - size] = HIDDEN  # what lies there is of no token, or of one that was refused
        past, own = values[:, :start], values[:, width - size :]
        if mask.is_chain:
            past.zero_()
            if size == 1:
                own.zero_()
            elif size <= STRIP:
                own.copy_(self._triangle[:size, :size])
            else:
                own.fill_(HIDDEN).triu_(1)
            return
        assert mask.mask is not None
        seen = mask.mask
        if start > mask.low:
            past[:, : mask.low] = HIDDEN
            past[:, mask.low :] = torch.where(seen[:, : start - mask.low], 0.0, HIDDEN)
        else:
            past.fill_(HIDDEN)
            seen = pad(seen, (mask.low - start, 0))
        own.copy_(torch.where(seen[:, len(seen[0]) - size :], 0.0, HIDDEN))
