"""The kind of head that Chimera drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.chimera.files import made, sizes
from outpace.models.heads.chimera.head import untrained_chimera
from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import HeadKind

ChimeraModel = NewType("ChimeraModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "chimera",
    "Chimera",
    "2402.15758",
    {"own": own_layout("chimera", sizes, made)},
    untrained_chimera,
    (ChimeraModel,),
)
