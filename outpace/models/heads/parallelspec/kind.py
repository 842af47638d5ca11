"""The kind of head that ParallelSpec drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import HeadKind
from outpace.models.heads.opened_head import ChainHead
from outpace.models.heads.parallelspec.files import made, sizes
from outpace.models.heads.parallelspec.head import untrained_parallelspec

ParallelSpecModel = NewType("ParallelSpecModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "parallelspec",
    "ParallelSpec",
    "2410.05589",
    {"own": own_layout("parallelspec", sizes, made)},
    untrained_parallelspec,
    (ParallelSpecModel, ChainHead),
)
