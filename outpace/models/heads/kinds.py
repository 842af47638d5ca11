"""The kinds of draft heads: one `HeadKind` for each folder beside this file, which it describes.

A kind of head is a folder `models/heads/NAME` with `kind.py`, which has its `HeadKind` as `KIND`, the network
in `head.py`, its file layout in `files.py` (or `formats.own`, where no other project has one), and its
training in `lesson.py`. The rest of the package finds the kinds here.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from outpace.core.contracts import TargetWithLayers
from outpace.models import heads
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.formats.files import Config, Tensors
from outpace.models.heads.position_head import PositionHead

Head = DraftHead | PositionHead
METHOD = "outpace_head"  # key of a head's method in the configurations of `formats.own`


@dataclass(frozen=True)
class Layout:
    """A file format for heads of one kind: which keys `config.json` has, and the names of the tensors in
    `model.safetensors`."""

    recognises: Callable[[Config, Collection[str]], bool]  # from configuration and names of tensors
    # a head for the target with weights still to be set, and the tensors by the names of its parameters.
    # HeadFileError if the head does not fit the target
    read: Callable[[Config, Tensors, TargetWithLayers], tuple[Head, Tensors]]
    # the head's configuration and tensors, given the target and its hub name or folder
    write: Callable[[Any, TargetWithLayers, str], tuple[Config, Tensors]]


@dataclass(frozen=True)
class EngineSupport:
    """How another engine runs the heads of one kind."""

    name: str  # the engine's name for drafting with them
    layout: str  # the layout that it reads
    # why it does not run this head, with what to do instead; None if it does
    refuses: Callable[[Any], str | None] = lambda head: None
    options: Mapping[str, Any] = field(
        default_factory=dict[str, Any]
    )  # further ones, in vLLM's configuration


@dataclass(frozen=True)
class HeadKind:
    """A kind of head, as the rest of the package uses it."""

    method: str  # the method that drafts with its heads
    title: str  # in messages and on cards
    paper: str  # number on arXiv
    layouts: Mapping[str, Layout]  # by name; the first one is written unless another is asked for
    untrained: Callable[[TargetWithLayers, int], Head]  # (target, seed) -> random head of the paper's sizes
    # annotations of recipe options that take heads of this kind; the first one takes no other kind
    options: tuple[Any, ...]
    engines: Mapping[str, EngineSupport] = field(default_factory=dict[str, EngineSupport])  # by name
    weight_files: tuple[str, ...] = ()  # other names of the file with weights in published folders
    # its layout would also recognise heads of other kinds, so the layouts of these are tried first
    asked_last: bool = False
    native: bool = False  # a target's own checkpoint may have such a head, and then none need be given


@cache
def head_kinds() -> tuple[HeadKind, ...]:
    """All kinds, in the order in which their layouts are tried."""
    names = [folder.name for folder in pkgutil.iter_modules(heads.__path__) if folder.ispkg]
    modules = [f"{heads.__name__}.{name}" for name in names if name != "formats"]
    kinds: list[HeadKind] = [import_module(f"{module}.kind").KIND for module in modules]
    return tuple(sorted(kinds, key=lambda kind: kind.asked_last))


def head_kind(method: str) -> HeadKind:
    """The kind whose heads this method drafts with. KeyError if it drafts with none of its own."""
    return {kind.method: kind for kind in head_kinds()}[method]


def recognised(config: Config, names: Collection[str]) -> tuple[HeadKind, Layout] | None:
    """Kind and layout of a head with this configuration and tensors of these names; None if it is no head."""
    for kind in head_kinds():
        for layout in kind.layouts.values():
            if layout.recognises(config, names):
                return kind, layout
    return None


def head_methods() -> tuple[str, ...]:
    """The methods of all kinds."""
    return tuple(kind.method for kind in head_kinds())


def kinds_by_option() -> dict[Any, list[HeadKind]]:
    """Annotation of a recipe option -> the kinds that it takes."""
    kinds: dict[Any, list[HeadKind]] = {}
    for kind in sorted(head_kinds(), key=lambda kind: kind.method):
        for option in kind.options:
            kinds.setdefault(option, []).append(kind)
    return kinds
