"""The kind of head that ReDrafter's recurrent drafters are: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.kinds import HeadKind, Layout
from outpace.models.heads.opened_head import ChainHead
from outpace.models.heads.position_model import PositionModel
from outpace.models.heads.redrafter import files
from outpace.models.heads.redrafter.head import untrained_redrafter

ReDrafterModel = NewType("ReDrafterModel", PositionModel)  # annotation of recipe options

KIND = HeadKind(
    "redrafter",
    "ReDrafter",
    "2403.09919",
    {"redrafter": Layout(files.recognises, files.read, files.write)},
    untrained_redrafter,
    (ReDrafterModel, ChainHead),
)
