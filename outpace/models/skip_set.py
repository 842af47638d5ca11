"""Which sub-layers a draft model made of the target's own layers skips."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SkipSet:
    """Sub-layers that are skipped: the residual stream passes them unchanged. Layers count from 0."""

    attention: frozenset[int] = frozenset()  # layers without their attention
    mlp: frozenset[int] = frozenset()  # layers without their MLP

    @staticmethod
    def of_layers(layers: Iterable[int]) -> SkipSet:
        """Skip attention and MLP of these layers."""
        skipped = frozenset(layers)
        return SkipSet(skipped, skipped)

    @staticmethod
    def after(num_layers: int, of: int) -> SkipSet:
        """Keep the first `num_layers` of `of` layers: an early exit. ValueError unless there are layers to
        keep and layers to skip."""
        if of < 2:
            raise ValueError("a target of one layer has no early exit: use a draft model")
        if not 0 < num_layers < of:
            raise ValueError(
                f"a model of {of} layers has no exit after {num_layers} of them: use 1 to {of - 1}"
            )
        return SkipSet.of_layers(range(num_layers, of))

    def __len__(self) -> int:
        """Number of sub-layers that are skipped."""
        return len(self.attention) + len(self.mlp)

    @property
    def layers(self) -> frozenset[int]:
        """Layers that are skipped as a whole."""
        return self.attention & self.mlp

    def check(self, num_layers: int) -> None:
        """ValueError if it names a layer that a model of `num_layers` layers lacks, or skips every layer."""
        if beyond := [layer for layer in self.attention | self.mlp if not 0 <= layer < num_layers]:
            raise ValueError(
                f"layer {min(beyond)} cannot be skipped: the model has layers 0 to {num_layers - 1}"
            )
        if len(self.layers) == num_layers:
            raise ValueError(f"all {num_layers} layers are skipped: keep at least one")
