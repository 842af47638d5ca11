"""The kind of head that Jakiro drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.jakiro.files import made, sizes
from outpace.models.heads.jakiro.head import untrained_jakiro
from outpace.models.heads.kinds import HeadKind

JakiroModel = NewType("JakiroModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "jakiro",
    "Jakiro",
    "2502.06282",
    {"own": own_layout("jakiro", sizes, made)},
    untrained_jakiro,
    (JakiroModel,),
)
