"""The base class of draft heads that are opened for a target."""

from __future__ import annotations

from typing import NewType


class OpenedHead:
    """Base class of HeadModel and PositionModel: a draft head, ready to draft for its target."""


# annotation of recipe options: a head of any kind from which a chain of tokens can be drawn
ChainHead = NewType("ChainHead", OpenedHead)
