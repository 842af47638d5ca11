"""Forwards through a compiled graph, on the same cache and with the same results as `Forward`.

Rows are read together unless they differ much in length: one pass over the weights serves all of them.

"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from outpace.core.contracts import NOTHING, Want
from outpace.models.export import refuse_untraceable, trace
from outpace.models.forward import Forward
from outpace.models.found import Found
from outpace.models.kv import SlotCache
from outpace.models.reading import RowReading
from outpace.models.request import Request
from outpace.models.rotations import Rotations
from outpace.models.runtime import HINTS, build, convert, openvino

SHORT = 16  # tokens of a row up to which reading it costs hardly more than reading one
TREE = torch.tensor(((1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 0, 1)), dtype=torch.bool)
STAGES = ("tracing", "converting", "compiling", "comparing")
Tell = Callable[[str], None]


def compiled(forward: Forward, tell: Tell = lambda stage: None, *, trees: bool = True) -> Compiled | Forward:
    """This model's forwards compiled; as they are, with a warning that says why, where that cannot be done."""
    name, dtype = type(forward.model).__name__, forward.model.dtype
    if forward.device.type != "cpu":
        raise ValueError(f"compile is for models on a CPU, and {name} is on {forward.device}: leave it out there")
    if dtype not in HINTS:
        raise ValueError(f"compile knows no {str(dtype).removeprefix('torch.')}: load {name} in float32 or bfloat16")
    openvino()
    try:
        made = Compiled(forward, tell)
        tell(STAGES[3])
        made.check(trees=trees)
        return made
    except Exception as error:  # tracing runs the model's own code, which may stumble over anything
        told = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        why = told[-1][:200]  # the runtime tells first where it stumbled, and last over what
        warnings.warn(f"{name} cannot be compiled and runs as it is: {why}", stacklevel=3)
        return forward


class Compiled:
    """A model's forwards through OpenVINO; what the graph does not give is read by `forward`."""

    packs = False  # prompts are read a row at a time: padding them to one another costs more than it saves

    def __init__(self, forward: Forward, tell: Tell = lambda stage: None) -> None:
        began = perf_counter()
        self.forward = forward
        refuse_untraceable(forward.model, forward.parameters)
        tell(STAGES[0])
        graph = trace(forward.model, forward.planes, selects=forward.selects)
        tell(STAGES[1])
        model = convert(graph, forward.planes, forward.model.dtype)
        self._kinds, self._selects = graph.kinds, graph.selects
        self._rotations = Rotations(openvino(), model, model.inputs[1].get_node())
        tell(STAGES[2])
        self.model = build(model, forward.model.dtype)
        self._requests: WeakKeyDictionary[SlotCache, Request] = WeakKeyDictionary()
        self.seconds = perf_counter() - began  # to compile, the comparison with the model as it is left out

    def read(
        self, rows: list[RowReading], nodes: list[int], tokens: Tensor, cache: SlotCache, want: Want, *, logits: bool
    ) -> Found:
        """One inference over the rows' tokens; found for the last `nodes` of each row."""
        if want.hidden or want.attention:
            return self.forward.read(rows, nodes, tokens, cache, want, logits=logits)
        request = self._requests.get(cache)
        if request is None or request.storages is not cache.storages:  # a large draft makes a cache move
            request = self._requests[cache] = Request(
                self.model, cache, self._kinds, self._rotations, selects=self._selects
            )
        if len(rows) == 1:
            return request.alone(cache, rows[0], nodes[0], tokens, logits)
        parts = tokens.split([row.end - row.start for row in rows])
        found: dict[int, Found] = {}
        for group in alike([len(part) for part in parts]):
            members = [rows[index] for index in group], [nodes[index] for index in group]
            read = request.together(cache, *members, [parts[index] for index in group], logits)
            found |= zip(group, read, strict=True)
        return Found.joined([found[index] for index in range(len(rows))])

    @torch.no_grad()
    def check(self, *, trees: bool) -> None:
        """Raise ValueError unless a text, and a tree behind it beside another text, give the model's own logits."""
        device, vocab = self.forward.device, self.forward.model.config.get_text_config().vocab_size
        tree = RowReading(0, 9, 13, 9, torch.tensor((0, 1, 1, 2)), TREE, 11)
        text, other = RowReading(0, 0, 9, 0, top=8), RowReading(1, 0, 6, 0, top=5)
        caches = [SlotCache(self.forward.planes, 2, 13, device, by_token=True) for _ in range(2)]
        for rows in ([text], [tree if trees else RowReading(0, 9, 13, 9, top=12), other]):
            sizes = [row.end - row.start for row in rows]
            tokens = torch.cat([torch.arange(row.start, row.end) * (7 + row.slot) % vocab for row in rows])
            ours, theirs = (
                reader.read(rows, sizes, tokens, cache, NOTHING, logits=True).logits
                for reader, cache in zip((self, self.forward), caches, strict=True)
            )
            assert ours is not None and theirs is not None
            error = float((ours - theirs.float()).norm() / theirs.float().norm())
            if not error <= (1e-3 if theirs.dtype == torch.float32 else 0.1):
                raise ValueError(f"its graph computes something else (logits differ by {error:.0%})")


def alike(lengths: list[int]) -> list[list[int]]:
    """Rows grouped so that padding each to the longest of its group at most doubles what is read."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not groups or lengths[index] > max(SHORT, 2 * lengths[groups[-1][0]]):
            groups.append([])
        groups[-1].append(index)
    return groups
