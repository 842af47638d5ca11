"""The kind of head that Gumiho drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.gumiho.files import made, sizes
from outpace.models.heads.gumiho.head import untrained_gumiho
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import HeadKind

GumihoModel = NewType("GumihoModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "gumiho",
    "Gumiho",
    "2503.10135",
    {"own": own_layout("gumiho", sizes, made)},
    untrained_gumiho,
    (GumihoModel,),
)
