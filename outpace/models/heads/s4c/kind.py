"""The kind of head that S4C drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.kinds import HeadKind
from outpace.models.heads.position_model import PositionModel
from outpace.models.heads.s4c.files import made, sizes
from outpace.models.heads.s4c.head import untrained_s4c

S4CModel = NewType("S4CModel", PositionModel)  # annotation of recipe options

KIND = HeadKind(
    "s4c",
    "S4C",
    "2506.14158",
    {"own": own_layout("s4c", sizes, made)},
    untrained_s4c,
    (S4CModel,),
)
