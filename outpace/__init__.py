"""Speculative decoding for PyTorch and transformers: published methods as short recipes on one engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Model", "Result", "Stream", "Vote", "generate", "hf", "load", "recipes", "stream", "vote", "zoo"]

if TYPE_CHECKING:
    from outpace import recipes as recipes
    from outpace import zoo as zoo
    from outpace.api import Model, Result, Stream, Vote, generate, load, stream, vote
    from outpace.integrations.transformers import hf

HOMES = {"hf": "outpace.integrations.transformers"} | dict.fromkeys(
    ("Model", "Result", "Stream", "Vote", "generate", "load", "stream", "vote"), "outpace.api"
)


def __getattr__(name: str) -> object:
    # importing torch takes seconds: nothing is imported before it is used
    if name in ("recipes", "zoo"):
        return import_module(f"outpace.{name}")
    if name not in HOMES:
        raise AttributeError(f"module 'outpace' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
