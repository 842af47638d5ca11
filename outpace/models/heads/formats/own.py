"""A layout for heads that no other project stores: sizes in `config.json`, tensors under parameter names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.files import Config, Tensors
from outpace.models.heads.kinds import METHOD, Head, Layout


def own_layout(
    method: str,
    sizes: Callable[[Any, TargetWithLayers], Mapping[str, Any]],
    made: Callable[[Config, TargetWithLayers], Head],
) -> Layout:
    """A layout whose `config.json` holds what `sizes` returns for a head. `made` builds a head from this
    configuration, or raises HeadFileError if it does not fit the target."""

    def recognises(config: Config, names: Collection[str]) -> bool:
        return config.get(METHOD) == method

    def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[Head, Tensors]:
        return made(config, target), tensors

    def write(head: Any, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
        config = {"architectures": [type(head).__name__], METHOD: method, **sizes(head, target)}
        return config, dict(head.own)

    return Layout(recognises, read, write)
