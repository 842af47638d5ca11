"""The kind of head that Kangaroo drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kangaroo.files import made, sizes
from outpace.models.heads.kangaroo.head import untrained_kangaroo
from outpace.models.heads.kinds import HeadKind

KangarooModel = NewType("KangarooModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "kangaroo",
    "Kangaroo",
    "2404.18911",
    {"own": own_layout("kangaroo", sizes, made)},
    untrained_kangaroo,
    (KangarooModel,),
)
