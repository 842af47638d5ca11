"""The kind of head that Dovetail drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.dovetail.files import made, sizes
from outpace.models.heads.dovetail.head import untrained_dovetail
from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import HeadKind

DovetailModel = NewType("DovetailModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "dovetail",
    "Dovetail",
    "2412.18934",
    {"own": own_layout("dovetail", sizes, made)},
    untrained_dovetail,
    (DovetailModel,),
)
