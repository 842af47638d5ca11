"""Forwards through a compiled graph, on a cache of its own form and with the same results as `Forward`.

The tokens of all rows are read in one pass over the weights, as many at once as pay.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy
import torch
from torch import Tensor

from outpace.core.contracts import NOTHING, Want
from outpace.models.cuda_graphs.graph_replay import GraphReplay, recorded
from outpace.models.hf.forward import Forward
from outpace.models.hf.forward_inputs import RowInputs
from outpace.models.hf.forward_outputs import ForwardOutputs
from outpace.models.hf.kv_cache import Planes, SlotCache
from outpace.models.openvino.export import refuse_untraceable, trace
from outpace.models.openvino.infer_request import SIZES, Part, Request, part_of
from outpace.models.openvino.paged_attention import PLACES
from outpace.models.openvino.paged_cache import PagedCache
from outpace.models.openvino.rotary import Rotations
from outpace.models.openvino.runtime import HINTS, build, convert, in_one_row, openvino, torch_type

MOST = SIZES[-1]  # tokens read in one inference, but for a tree of more nodes
TREE = torch.tensor(((1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 0, 1)), dtype=torch.bool)
STAGES = ("tracing", "converting", "compiling", "warming up", "comparing")
Tell = Callable[[str], None]


def compiled(
    forward: Forward, tell: Tell = lambda stage: None, *, trees: bool = True
) -> CompiledForward | GraphReplay | Forward:
    """This model's forwards compiled; as they are, with a warning that says why, where that cannot be
    done."""
    name, dtype = type(forward.model).__name__, forward.model.dtype
    on_cpu = forward.device.type == "cpu"
    if on_cpu:
        if dtype not in HINTS:
            known = f"compile knows no {str(dtype).removeprefix('torch.')}"
            raise ValueError(f"{known}: load {name} in float32 or bfloat16")
        openvino()
    try:
        made = CompiledForward(forward, tell) if on_cpu else GraphReplay(forward, recorded)
        tell(STAGES[4])
        check(made, forward, trees=trees)
        return made
    except Exception as error:  # tracing runs the model's own code, which may stumble over anything
        told = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        why = told[-1][:200]  # the runtime tells first where it stumbled, and last over what
        warnings.warn(f"{name} cannot be compiled and runs as it is: {why}", stacklevel=3)
        return forward


@torch.no_grad()
def check(made: CompiledForward | GraphReplay, forward: Forward, *, trees: bool) -> None:
    """Raise ValueError unless a text, and a tree behind it beside another text, give the model's own
    logits."""
    vocab = forward.model.config.get_text_config().vocab_size
    tree = RowInputs(0, 9, 13, 9, torch.tensor((0, 1, 1, 2)), TREE, 11)
    text, other = RowInputs(0, 0, 9, 0, top=8), RowInputs(1, 0, 6, 0, top=5)
    caches = made.open(2, 13), SlotCache(forward.planes, 2, 13, forward.device)
    for rows in ([text], [tree if trees else RowInputs(0, 9, 13, 9, top=12), other]):
        sizes = [row.end - row.start for row in rows]
        tokens = torch.cat([torch.arange(row.start, row.end) * (7 + row.slot) % vocab for row in rows])
        ours, theirs = (
            reader.read(rows, sizes, tokens, cache, NOTHING, logits=True).logits
            for reader, cache in zip((made, forward), caches, strict=True)
        )
        assert ours is not None and theirs is not None
        error = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
        if not error <= (1e-3 if theirs.dtype == torch.float32 else 0.1):
            raise ValueError(f"its graph computes something else (logits differ by {error:.0%})")


class CompiledForward:
    """A model's forwards through OpenVINO; what the graph does not give is read by `forward`."""

    packs = True  # prompts of several rows are read in one pass

    def __init__(self, forward: Forward, tell: Tell = lambda stage: None) -> None:
        began = perf_counter()
        self.forward = forward
        refuse_untraceable(forward.model, forward.parameters, dense=forward.dense)
        tell(STAGES[0])
        self._graph = trace(forward.model, forward.planes, selects=forward.selects)
        tell(STAGES[1])
        model = convert(self._graph, forward.model.dtype)
        self._rotations = Rotations(openvino(), model, model.inputs[1].get_node())
        in_one_row(model)
        tell(STAGES[2])
        self.model = build(model, forward.model.dtype)
        self._planes = self._stored_as(forward.planes)
        tell(STAGES[3])
        self._warm_up()
        self.seconds = (
            perf_counter() - began
        )  # until it runs; the comparison with the model as it is left out

    def _stored_as(self, planes: Planes) -> Planes:
        """The planes in the numbers that the runtime stores."""
        first, types = 2 + self._graph.selects + len(PLACES), list[torch.dtype]()
        for count in planes.counts:
            types.append(torch_type(self.model.inputs[first].get_element_type()))
            first += count
        shapes = (replace(shape, dtype=dtype) for shape, dtype in zip(planes.shapes, types, strict=True))
        return replace(planes, shapes=tuple(shapes))

    @torch.no_grad()
    def _warm_up(self) -> None:
        """Meet every size once: the first time of each takes much longer."""
        cache = self.open(1, MOST)
        for size in SIZES:
            self._request_of(cache).read([_chain(cache, size)], True)

    def open(self, slots: int, capacity: int) -> PagedCache:
        """A cache for this many sequences of `capacity` tokens each, provisional nodes included."""
        return PagedCache(self._planes, slots, capacity)

    def read(
        self,
        rows: list[RowInputs],
        nodes: list[int],
        tokens: Tensor,
        cache: SlotCache,
        want: Want,
        *,
        logits: bool,
    ) -> ForwardOutputs:
        """Inferences over the rows' tokens; found for the last `nodes` of each row."""
        assert isinstance(cache, PagedCache)
        # the runtime's windows count places, which for trees are not positions
        window = self._graph.window
        if (
            want.hidden
            or want.attention
            or (window and any(r.depths is not None and r.end > window for r in rows))
        ):
            return self._read_aside(rows, nodes, tokens, cache, want, logits=logits)
        request = self._request_of(cache)
        if len(rows) == 1 and len(tokens) <= MOST:
            return ForwardOutputs(request.read([part_of(rows[0], tokens, nodes[0], cache)], logits))
        split = tokens.split([row.end - row.start for row in rows])
        parts = [part_of(*of, cache) for of in zip(rows, split, nodes, strict=True)]
        found = [request.read(group, logits) for group in grouped(parts)]
        return ForwardOutputs(
            torch.cat([scores for scores in found if scores is not None]) if logits else None
        )

    def _request_of(self, cache: PagedCache) -> Request:
        request = cache.request
        if request is None or request.storages is not cache.storages:  # a large draft makes a cache move
            request = cache.request = Request(self.model, cache, self._graph, self._rotations)
        return request

    def _read_aside(
        self,
        rows: list[RowInputs],
        nodes: list[int],
        tokens: Tensor,
        cache: PagedCache,
        want: Want,
        *,
        logits: bool,
    ) -> ForwardOutputs:
        """Read by the model as it is, on a copy of what the rows have in the cache."""
        aside = SlotCache(self.forward.planes, len(rows), max(row.end for row in rows), self.forward.device)
        for index, row in enumerate(rows):
            for view, stored in zip(
                aside.views(index, 0, row.start), cache.views(row.slot, 0, row.start), strict=True
            ):
                view.copy_(stored)
        own = [replace(row, slot=index) for index, row in enumerate(rows)]
        found = self.forward.read(own, nodes, tokens, aside, want, logits=logits)
        at = 0
        for index, row in enumerate(rows):
            cache.write(row.slot, row.start, aside.views(index, row.start, row.end))
            cache.tokens[row.slot, row.start : row.end] = tokens[at : at + row.end - row.start].numpy()
            at += row.end - row.start
        return found


def _chain(cache: PagedCache, size: int) -> Part:
    return Part(0, 0, numpy.zeros(size, numpy.int64), cache.places[:size], None, size)


def grouped(parts: list[Part]) -> list[list[Part]]:
    """What is read in each inference, in order: at most `MOST` tokens but for larger trees; chains are
    cut."""
    groups: list[list[Part]] = []
    room = 0
    for part in parts:
        for piece in _pieces(part, room):
            size = len(piece.tokens)
            if size > room or not groups or groups[-1][-1].slot == piece.slot:
                groups.append([])
                room = MOST
            groups[-1].append(piece)
            room -= size
    return groups


def _pieces(part: Part, room: int) -> list[Part]:
    """The part, or if it is a chain with too many tokens, pieces of it of which the first is for what room is
    left."""
    total = len(part.tokens)
    if part.seen is not None or total <= room:
        return [part]
    bounds, at = [0], room if room else min(total, MOST)
    while at < total:
        bounds.append(at)
        at += MOST
    bounds.append(total)
    pieces = []
    for start, end in zip(bounds, bounds[1:], strict=False):
        num = max(0, min(end, total) - max(start, total - part.num))
        pieces.append(
            Part(part.slot, part.start + start, part.tokens[start:end], part.positions[start:end], None, num)
        )
    return pieces
