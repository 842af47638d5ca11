"""The kind of head that `mtp` drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import HeadKind
from outpace.models.heads.mtp.files import made, sizes
from outpace.models.heads.mtp.head import untrained_mtp

MtpHeadModel = NewType("MtpHeadModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "mtp",
    "MTP",
    "2412.19437",
    {"own": own_layout("mtp", sizes, made)},
    untrained_mtp,
    (MtpHeadModel,),
    native=True,
)
