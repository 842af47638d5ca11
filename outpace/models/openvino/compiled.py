"""Forwards of a model compiled with OpenVINO on a paged KV cache; outputs agree with the eager `Forward`.

The tokens of all rows share one inference, up to `MAX_TOKENS` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any
from weakref import finalize

import numpy
import torch
from torch import Tensor

from outpace.core.contracts import Cache, Choose, Ends
from outpace.models.eager.cache_view import OWN_CACHE
from outpace.models.eager.contiguous_cache import ContiguousCache
from outpace.models.eager.eight_bits import NUM_BYTES, from_rows, to_rows
from outpace.models.eager.forward import Forward
from outpace.models.forward.kv_cache import Planes, PlaneShape, SlotCache
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.request import ForwardRequest
from outpace.models.forward.row_inputs import RowInputs
from outpace.models.openvino.compressed_weights import CompressedWeights
from outpace.models.openvino.export import refuse_untraceable, trace
from outpace.models.openvino.infer_request import InferRequest, row_tokens_of
from outpace.models.openvino.paged_attention import BLOCK_SIZE, PAGED_INPUTS
from outpace.models.openvino.paged_cache import PagedCache
from outpace.models.openvino.paged_view import PagedView
from outpace.models.openvino.request_inputs import RowTokens
from outpace.models.openvino.rotary import PositionTables
from outpace.models.openvino.row_groups import group_rows
from outpace.models.openvino.runtime import (
    build,
    compiled_dtype,
    convert,
    fix_batch_of_one,
    fix_size,
    openvino,
    torch_type,
)
from outpace.models.openvino.size_policy import (
    MAX_TOKENS,
    MEASURED,
    SizeTimes,
    fixed_policy,
    policy_by_weights,
    policy_of,
)
from outpace.models.openvino.two_way_blocks import in_copies

STAGES = ("tracing", "converting", "compiling", "warming up", "comparing")
# Besides the graph for any number of tokens there are graphs compiled for exactly 1, 6, 11 and 16 tokens of
# one row in causal order: OpenVINO runs fixed shapes faster, and these inferences never change their size.
# One token is plain decoding or one level of a draft; six and eleven are a root and a draft of five or ten;
# 16 hold longer drafts. Each graph has its own copy of the weights, so only as many graphs are compiled, in
# this order, as copies fit into FIXED_BYTES; with compressed weights, whose purpose is to save memory, into
# LIGHT_FIXED_BYTES.
FIXED_SIZES, FIXED_BYTES, LIGHT_FIXED_BYTES = (1, 6, 11, 16), 1 << 30, 1 << 28
# The first inference over a padded number of tokens (a size) takes some milliseconds longer than later ones.
# So each size is run once at loading, in increasing order, up to the first that takes LONG seconds: above it
# the milliseconds do not matter, and running all sizes would make loading slow.
LONG = 0.25
# Each size is timed ROUNDS times, each time followed by REPEATS inferences of the same size; measuring stops
# after SECONDS, or SHARE of the time that compiling took.
ROUNDS, REPEATS, SECONDS, SHARE = 6, 2, 0.3, 0.1
# Opening a KV cache takes milliseconds, as long as several steps of a small model, mostly to make an
# inference request per graph. So the last cache that was closed is reused unless it is larger than this.
KEPT_BYTES = 1 << 26
OnStage = Callable[[str], None]


class CompiledForward:
    """A model's forwards compiled with OpenVINO; forwards that need attention weights run eagerly.

    The outputs of layers are outputs of the graph. When some are needed that it lacks, the model is compiled
    again with them."""

    packs = True  # prompts of several rows share one inference
    outside_torch, begins_later = True, False

    def __init__(
        self,
        forward: Forward,
        on_stage: OnStage = lambda stage: None,
        hidden: frozenset[int] = frozenset(),
        weights: CompressedWeights | None = None,
        *,
        cache_in_8_bits: bool = False,
        num_threads: int | None = None,
    ) -> None:
        began = perf_counter()
        self.cache_in_8_bits = cache_in_8_bits
        self.forward, self._weights = forward, weights
        # kept for graphs that are compiled later: a session sets torch to a single thread
        self.num_threads = num_threads or torch.get_num_threads()
        refuse_untraceable(forward.model, forward.parameters, dense=forward.dense)
        self._num_weights = sum(p.numel() for p in forward.model.parameters() if p.dim() > 1)
        bits = {None: 8 * forward.model.dtype.itemsize, "int8": 8, "int4": 4}
        self._weight_bytes = 1 + self._num_weights * bits[weights.format if weights else None] // 8
        self.policy = policy_by_weights(self._num_weights)  # until sizes have been timed
        # at most one element: the attributes of a KV cache that is no longer used, for the next cache
        self._closed: list[dict[str, Any]] = []
        self._compile(tuple(sorted(hidden)), on_stage)
        self._choose_sizes(max(SECONDS, SHARE * (perf_counter() - began)))
        self.seconds = perf_counter() - began  # OpenVINO compile time, without comparing logits to eager ones

    @property
    def precision(self) -> torch.dtype:
        """The dtype in which the compiled model computes: that of the model, or float32 where the CPU lacks
        it; never float16."""
        return torch_type(self.model.get_property("INFERENCE_PRECISION_HINT"))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of tokens to which inferences are padded."""
        return self.policy.sizes

    @property
    def chain_sizes(self) -> tuple[int, ...]:
        """Padded sizes, in tokens, of forwards over a single sequence whose draft is a chain: the sizes of
        the graphs with fixed shapes, then the larger sizes of the graph with dynamic shapes."""
        fixed = sorted(self._models.keys() - {0})
        return (*fixed, *(size for size in self.sizes if size > max(fixed, default=0)))

    @torch.no_grad()
    def _compile(self, layers: tuple[int, ...], on_stage: OnStage = lambda stage: None) -> None:
        """Compile the graph with the outputs of these layers."""
        forward = self.forward
        self._closed.clear()
        on_stage(STAGES[0])
        replaced = self._weights.nodes if self._weights else ()
        graph = trace(
            forward.model, forward.planes, selects=forward.selects, layers=layers, replaced=replaced
        )
        on_stage(STAGES[1])
        threads, dtype = self.num_threads, compiled_dtype(forward.model.dtype)
        model = convert(graph, dtype, self._weights, num_threads=threads)
        self._graph = replace(graph, traced=None)
        del graph
        self._rotations = PositionTables(openvino(), model, model.inputs[1].get_node())
        fix_batch_of_one(model)
        on_stage(STAGES[2])
        most_bytes = LIGHT_FIXED_BYTES if self._weights else FIXED_BYTES
        copies = {size: model.clone() for size in FIXED_SIZES[: most_bytes // self._weight_bytes]}
        for size, copy in copies.items():
            fix_size(copy, self._graph, size, self._rotations.shapes(size))
        in_8_bits = self.cache_in_8_bits
        # number of tokens for which a graph was compiled -> graph; 0: any number
        self._models = {
            size: build(graph_model, dtype, num_threads=threads, cache_in_8_bits=in_8_bits)
            for size, graph_model in ({0: model} | copies).items()
        }
        self.model = self._models[0]
        self.planes = self._stored_as(forward.planes)
        on_stage(STAGES[3])
        self._warm_up()

    def _stored_as(self, planes: Planes) -> Planes:
        """The planes with the dtypes and sizes of the compiled model's KV cache inputs. ValueError for
        another layout."""
        first, shapes = self._graph.num_inputs + len(PAGED_INPUTS), list[PlaneShape]()
        for shape, count in zip(planes.shapes, planes.counts, strict=True):
            stored = self.model.inputs[first]
            size = shape.size + NUM_BYTES if self.cache_in_8_bits else shape.size
            if list(stored.get_partial_shape())[2:] != [BLOCK_SIZE, size]:
                raise ValueError("this version of OpenVINO stores keys and values in another layout")
            shapes.append(replace(shape, dtype=torch_type(stored.get_element_type()), size=size))
            first += count
        return replace(planes, shapes=tuple(shapes))

    @torch.no_grad()
    def _choose_sizes(self, seconds: float) -> None:
        """Choose the sizes and when they change, from about `seconds` seconds of timed inferences."""
        run, times = self._runner(), {size: SizeTimes() for size in MEASURED}
        ends = perf_counter() + seconds
        for size in MEASURED * ROUNDS:
            times[size].changed.append(run(size))
            times[size].repeated += [run(size) for _ in range(REPEATS)]
            if perf_counter() > ends:
                break
        warm = self.sizes
        self.policy = policy_of(times, self._num_weights)
        for size in sorted(set(self.sizes).difference(warm)):
            run(size)

    @torch.no_grad()
    def _warm_up(self) -> None:
        """Run one inference of every size, since a size's first inference is slow, until one takes LONG."""
        run = self._runner()
        for size in self.sizes:
            if run(size) > LONG:
                break
        cache = self.open(1, MAX_TOKENS)
        cache.reserve(0, MAX_TOKENS)
        for size in self._models.keys() - {0}:
            self._request_of(cache, size).read([_chain(cache, size, self._graph.features)], True)

    def _runner(self) -> Callable[[int], float]:
        """A function that runs an inference of a size on an empty KV cache and returns its seconds."""
        cache = self.open(1, MAX_TOKENS)
        cache.reserve(0, MAX_TOKENS)
        request = self._request_of(cache)

        def run(size: int) -> float:
            parts = [_chain(cache, size, self._graph.features)]
            began = perf_counter()
            request.read(parts, True, size=size)
            return perf_counter() - began

        return run

    def open(self, slots: int, capacity: int) -> PagedCache:
        """A KV cache without texts, with `slots` slots of at least `capacity` cache positions each, draft
        nodes included. It takes over the memory of the last closed cache if that is large enough."""
        memory = self._closed.pop() if self._closed else None
        if memory and len(memory["lengths"]) == slots and memory["capacity"] >= capacity:
            cache = PagedCache.reopened(memory)
        else:
            cache = PagedCache(self.planes, slots, capacity)
        finalize(cache, self._keep, vars(cache)).atexit = False
        return cache

    def _keep(self, memory: dict[str, Any]) -> None:
        """Keep the memory of a KV cache that is no longer used, in place of an earlier one's."""
        if sum(storage.nbytes for storage in memory["storages"]) <= KEPT_BYTES:
            self._closed[:] = [memory]

    def view(self, cache: Cache, kept: Sequence[int]) -> PagedView:
        """A view of a target's KV cache for this model, which consists of layers of that target."""
        if isinstance(cache, PagedCache):
            return PagedView(cache, self.planes, kept)
        raise ValueError(OWN_CACHE)

    def read(self, request: ForwardRequest, cache: SlotCache) -> ForwardOutputs:
        """Run inferences over the rows' tokens."""
        assert isinstance(cache, PagedCache)
        # OpenVINO's attention is causal by cache position, also where a mask lets tokens see later ones
        given, two_way = request, any(row.two_way for row in request.rows)
        if two_way:
            request = in_copies(request, self.forward.captures.num_layers)
        rows, want, logits = request.rows, request.want, request.logits
        # OpenVINO's sliding windows count cache positions, which differ from position ids in trees
        window = self._graph.window
        beyond = window and any(r.depths is not None and r.end > window for r in rows)
        long = two_way and any(row.depths is not None and len(row.depths) > MAX_TOKENS for row in rows)
        if beyond or long or want.attention or not request.is_plain or request.after is not None:
            return self._read_eagerly(given, cache)
        for row in rows if two_way else ():
            cache.reserve(row.slot, row.end)
        if not want.hidden <= set(self._graph.layers):
            self._compile(tuple(sorted(want.hidden.union(self._graph.layers))))
        tokens, nodes, features = request.tokens, request.nodes, request.features
        if len(rows) == 1 and len(tokens) <= MAX_TOKENS:
            infer = self._request_of(cache, self._fixed_size(rows[0]))
            return infer.read(row_tokens_of(rows[0], tokens, nodes[0], cache, features), logits, want.hidden)
        infer, sizes = self._request_of(cache), request.sizes
        inputs = [None] * len(rows) if features is None else features.split(sizes)
        parts = [
            part
            for row, ids, num, states in zip(rows, tokens.split(sizes), nodes, inputs, strict=True)
            for part in row_tokens_of(row, ids, num, cache, states)
        ]
        return ForwardOutputs.joined([infer.read(group, logits, want.hidden) for group in group_rows(parts)])

    def _fixed_size(self, row: RowInputs) -> int:
        """The size of the graph that reads this row: the smallest fixed size that holds its tokens; 0 for the
        graph with dynamic shapes (trees and longer chains)."""
        if row.depths is not None:
            return 0
        total = row.end - row.start
        return min((size for size in self._models if size >= total), default=0)

    def _request_of(self, cache: PagedCache, size: int = 0) -> InferRequest:
        request, model = cache.requests.get(size), self._models[size]
        if request is None or request.model is not model:
            policy = fixed_policy(size) if size else self.policy
            request = InferRequest(model, cache, self._graph, self._rotations, policy)
            cache.requests[size] = request
        return request

    def read_chain(
        self,
        request: ForwardRequest,
        cache: SlotCache,
        depth: int,
        choose: Choose | None,
        ends: Ends | None = None,
    ) -> tuple[list[int], Tensor] | None:
        """Run one inference over tokens which follow each other in one row, then one for each of up to
        `depth` - 1 further tokens, each chosen from the preceding logits; see core.contracts.ReadsChains.
        None for more than `MAX_TOKENS` tokens and for a draft head whose graph does not return the next
        token's feature."""
        assert isinstance(cache, PagedCache)
        graph, model = self._graph, self.forward.model
        state = int(getattr(model, "state_layer", -1)) if graph.features else None
        (row,) = request.rows
        if len(request.tokens) > MAX_TOKENS or not request.is_plain:
            return None
        if state is not None and state not in graph.layers:
            return None
        ids = getattr(model, "draft_ids", None)
        draft_ids = None if ids is None else ids.numpy()
        (part,) = row_tokens_of(row, request.tokens, 1, cache, request.features)
        first, then = self._fixed_size(row), 1 if 1 in self._models else 0
        chosen, logits = self._request_of(cache, first).read_chain(
            part, depth, choose, self._request_of(cache, then), state=state, draft_ids=draft_ids, ends=ends
        )
        cache.tokens[row.slot, row.end : row.end + len(chosen) - 1] = chosen[:-1]
        return chosen, logits

    def _read_eagerly(self, request: ForwardRequest, cache: PagedCache) -> ForwardOutputs:
        """Run the eager forward on a copy of the rows' KV entries; new entries are written to `cache`."""
        rows, tokens = request.rows, request.tokens
        longest = max(row.end for row in rows)
        planes, in_8_bits = self.forward.planes, self.cache_in_8_bits
        aside = ContiguousCache(planes, len(rows), longest, self.forward.device, in_8_bits=in_8_bits)
        for index, row in enumerate(rows):
            aside.reserve(index, row.end)
            for view, stored in zip(
                aside.views(index, 0, row.start), cache.views(row.slot, 0, row.start), strict=True
            ):
                view.copy_(from_rows(stored, view.dtype) if in_8_bits else stored)
        own = [replace(row, slot=index) for index, row in enumerate(rows)]
        outputs = self.forward.read(replace(request, rows=own), aside)
        at = 0
        for index, row in enumerate(rows):
            entries = aside.views(index, row.start, row.end)
            cache.write(row.slot, row.start, [to_rows(plane) for plane in entries] if in_8_bits else entries)
            cache.tokens[row.slot, row.start : row.end] = tokens[at : at + row.end - row.start].numpy()
            at += row.end - row.start
        return outputs


def _chain(cache: PagedCache, size: int, features: int) -> RowTokens:
    states = numpy.zeros((size, features), numpy.float32) if features else None
    return RowTokens(0, 0, numpy.zeros(size, numpy.int64), cache.position_ids[:size], None, size, states)
