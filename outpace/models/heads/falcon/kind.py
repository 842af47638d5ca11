"""The kind of head that Falcon drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.falcon.files import made, sizes
from outpace.models.heads.falcon.head import untrained_falcon
from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import HeadKind

FalconModel = NewType("FalconModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "falcon",
    "Falcon",
    "2412.12639",
    {"own": own_layout("falcon", sizes, made)},
    untrained_falcon,
    (FalconModel,),
)
