"""The kind of head that CORAL drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.coral.files import LAYOUT
from outpace.models.heads.coral.head import untrained_coral
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import HeadKind

CoralModel = NewType("CoralModel", HeadModel)  # annotation of recipe options

KIND = HeadKind("coral", "CORAL", "2502.16880", {"own": LAYOUT}, untrained_coral, (CoralModel,))
