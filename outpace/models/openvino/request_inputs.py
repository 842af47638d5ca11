"""Input tensors of an OpenVINO inference request over rows of one paged KV cache.

The tokens of all rows are concatenated and padded to one of a few sizes: the first inference of a size is
slow, and so is a change of size.

Letters: R rows, N tokens of all rows, n tokens of one row, T cache positions, D size of features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from outpace.models.openvino.export import TracedModel
from outpace.models.openvino.paged_attention import PAGED_INPUTS
from outpace.models.openvino.paged_cache import PagedCache
from outpace.models.openvino.rotary import PositionTables
from outpace.models.openvino.runtime import InputTensor, shared
from outpace.models.openvino.size_policy import SizeChoice, SizePolicy

# Whenever the longest text in the KV cache passes a multiple of 32 tokens for the first time, OpenVINO
# generates the attention kernels of a graph anew, which takes about a millisecond per layer. So the length
# passed to OpenVINO is rounded up to a power of two, at least LEAST_LENGTH, whose kernels are generated at
# loading. The length bounds buffers and loops; a larger one makes forwards no slower.
LEAST_LENGTH = 512
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


class RequestInputs:
    """The input tensors of an inference request for one KV cache, reused by all its inferences."""

    def __init__(
        self,
        request: Any,  # of OpenVINO
        cache: PagedCache,
        graph: TracedModel,
        rotations: PositionTables,
        policy: SizePolicy,
    ) -> None:
        # no reference to the cache, which owns this object: a cycle would delay freeing the memory
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
        planes = cache.every_plane()
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
        self._policy, self._sizes = policy, policy.sizes
        self.restart()

    def restart(self) -> None:
        """Choose later sizes independently of earlier inferences."""
        self._choice = SizeChoice(self._policy)

    @property
    def selects_logits(self) -> bool:
        """Whether only the logits of requested tokens are computed."""
        return self._keep is not None

    def write(
        self, parts: Sequence[RowTokens], requested: Array | None, size: int | None = None
    ) -> tuple[int, int]:
        """Write the rows' tokens; returns their number without and with padding. `requested`: indices of the
        tokens whose logits are computed, None for all. `size`: number of tokens with padding; None: by the
        policy."""
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
        self._select_logits(requested, total, size)
        return total, size

    def write_next(self, slot: int, token: int, start: int, features: Array | None = None) -> None:
        """Write one token of one row, at cache position `start`, after inferences over chains. `features`:
        (D,) of a draft head."""
        size = self._choice.take(1)
        self._write_rows((slot,))
        frame = self._frame
        if size != frame.size:
            frame = self._frame = self._token_inputs(size)
        frame.ids[0], frame.ids[1:] = token, 0
        frame.positions[:] = self._count[start : start + size]
        for table, values in frame.lookups:
            values[:] = table[start : start + size]
        self._lengths.take(1)[0] = start
        self._begins.take(2)[:] = 0, size
        self._longest.take()[...] = _rounded_up(start + size)
        if self._features is not None:
            inputs = self._features.take(1, size, self._feature_size)[0]
            inputs[0], inputs[1:] = features, 0
        self._select_logits(None, 1, size)

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
            values = feed.take(*lookup.shape(table.shape, size))
            lookups.append((table, numpy.moveaxis(values, lookup.axes, (0, 1))[0]))
        return TokenInputs(size, self._ids.take(1, size)[0], self._positions.take(1, size)[0], lookups)

    def _write_cache_positions(self, parts: Sequence[RowTokens], sizes: list[int]) -> None:
        """Write the inputs of paged attention: each row's blocks, number of tokens in the cache (lengths) and
        index of its first token (begins). `sizes`: tokens per row, padding included."""
        self._write_rows(tuple([part.slot for part in parts]))
        lengths, begins = self._lengths.take(len(parts)), self._begins.take(len(parts) + 1)
        begins[0] = end = longest = 0
        for index, (part, num) in enumerate(zip(parts, sizes, strict=True)):
            end += num
            lengths[index], begins[index + 1] = part.start, end
            longest = max(longest, part.start + num)
        self._longest.take()[...] = _rounded_up(longest)

    def _write_rows(self, rows: tuple[int, ...]) -> None:
        """Write the blocks of these slots, unless they are unchanged since the last inference."""
        tables = self._tables
        if rows != self._rows or tables.version != self._version:
            self._rows, self._version = rows, tables.version
            blocks = tables.array.shape[1]
            self._of_rows.take(len(rows) * blocks)[:] = tables.array[list(rows)].ravel()
            self._row_begins.take(len(rows) + 1)[:] = numpy.arange(len(rows) + 1) * blocks

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

    def _select_logits(self, kept: Array | None, total: int, size: int) -> None:
        """Write the input that selects the tokens whose logits are computed, padded to one of the sizes.
        `kept`: their indices; None: the first `total` tokens."""
        if self._keep is None or (kept is None and self._kept == (total, size)):
            return
        num = total if kept is None else len(kept)
        fitting = next((padded for padded in self._sizes if padded >= num), size)
        keep = self._keep.take(max(1, min(size, fitting)))
        self._kept = (total, size) if kept is None else None
        if kept is None:
            keep[:] = self._count[: len(keep)]
        else:
            keep[num:], keep[:num] = 0, kept


def _rounded_up(length: int) -> int:
    """The smallest power of two that is at least `length` and LEAST_LENGTH."""
    return max(LEAST_LENGTH, 1 << (length - 1).bit_length())
