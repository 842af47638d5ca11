"""The kind of head that FSPAD drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.fspad.files import made, sizes
from outpace.models.heads.fspad.head import untrained_fspad
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import HeadKind

FspadModel = NewType("FspadModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "fspad",
    "FSPAD",
    "2408.15562",
    {"own": own_layout("fspad", sizes, made)},
    untrained_fspad,
    (FspadModel,),
)
