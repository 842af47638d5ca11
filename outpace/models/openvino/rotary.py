"""Replaces values that a graph computes from position ids alone (rotary embeddings) by tables in float32.

With bfloat16 precision OpenVINO would compute these values in bfloat16, which cannot represent all integers
above 256.

Letters: N position ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PositionTable:
    """The layout of one value that a graph computes from position ids alone."""

    axes: tuple[int, int]  # axes of the value that stand for rows and tokens
    rank: int  # number of axes

    def shape(self, table: Sequence[int], tokens: int) -> list[int]:
        """Shape of the value for `tokens` tokens of one row. `table`: shape of its table (N, ...)."""
        shape = list(table[1:])
        for axis, length in sorted(zip(self.axes, (1, tokens), strict=True)):
            shape.insert(axis, length)
        return shape


class PositionTables:
    """Tables of the values that a graph computes from position ids alone. In the graph (`model`) these values
    become the last inputs, in the order of `lookups`. ValueError if one of them is not per token."""

    def __init__(self, ov: Any, model: Any, positions: Any) -> None:
        cuts = cut_position_outputs(model, positions)
        self.lookups: list[PositionTable] = []
        self._tables: list[Tensor] = []
        if not cuts:
            return
        apart = ov.Model(list(cuts), [positions])
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        self._compute = ov.Core().compile_model(apart, "CPU", options)
        shapes = [
            [table.shape for table in self._at(torch.zeros(*sizes, dtype=torch.int64))]
            for sizes in ((2, 3), (5, 7))
        ]
        for small, large in zip(*shapes, strict=True):
            grown = {
                pair: axis for axis, pair in enumerate(zip(small, large, strict=True)) if pair[0] != pair[1]
            }
            if grown.keys() != {(2, 5), (3, 7)}:
                raise ValueError("it computes from position ids something that is not one value per token")
            self.lookups.append(PositionTable((grown[2, 5], grown[3, 7]), len(small)))
        for output in cuts:
            given = ov.opset13.parameter(output.get_partial_shape(), ov.Type.f32)
            for reader in cuts[output]:
                reader.replace_source_output(given.output(0))
            model.add_parameters([given])

    def _at(self, positions: Tensor) -> list[Tensor]:
        values = self._compute(positions.numpy())
        return [torch.from_numpy(values[index].copy()) for index in range(len(self._compute.outputs))]

    def shapes(self, tokens: int) -> list[list[int]]:
        """Per lookup the shape of its value for `tokens` tokens of one row."""
        tables = self.tables(1)
        return [lookup.shape(own.shape, tokens) for lookup, own in zip(self.lookups, tables, strict=True)]

    def tables(self, length: int) -> list[Tensor]:  # (N, ...) with N >= length
        """One table per lookup: its values at position ids 0 to N - 1, with N at least `length`."""
        if self.lookups and (not self._tables or len(self._tables[0]) < length):
            tables = self._at(torch.arange(length)[None])
            self._tables = [
                values.movedim(lookup.axes, (0, 1))[0].contiguous()
                for values, lookup in zip(tables, self.lookups, strict=True)
            ]
        return self._tables


def cut_position_outputs(model: Any, positions: Any) -> dict[Any, list[Any]]:
    """Floating-point outputs that depend on position ids alone and are used by the rest of the graph: output
    -> inputs of that rest that use it."""
    own, alone, floating = positions.get_friendly_name(), set[str](), set[str]()
    cuts: dict[Any, list[Any]] = {}
    for node in model.get_ordered_ops():
        name, kind = node.get_friendly_name(), node.get_type_name()
        above = [port.get_source_output().get_node() for port in node.inputs()]
        varying = [node.get_friendly_name() for node in above if node.get_type_name() != "Constant"]
        if name == own or (varying and kind not in ("Result", "ShapeOf") and alone.issuperset(varying)):
            alone.add(name)
            if kind == "Convert" or not floating.isdisjoint(varying):
                floating.add(name)
    for node in model.get_ordered_ops():
        if node.get_friendly_name() not in floating:
            continue
        for output in node.outputs():
            readers = [
                port
                for port in output.get_target_inputs()
                if port.get_node().get_friendly_name() not in alone
            ]
            if readers and output.get_element_type().is_real():
                cuts[output] = readers
    return cuts
