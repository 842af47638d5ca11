"""The kind of head that Hydra and Hydra++ draft with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.hydra import files
from outpace.models.heads.hydra.head import untrained_hydra
from outpace.models.heads.kinds import HeadKind, Layout
from outpace.models.heads.opened_head import ChainHead
from outpace.models.heads.position_model import PositionModel

HydraModel = NewType("HydraModel", PositionModel)  # annotation of recipe options

KIND = HeadKind(
    "hydra",
    "Hydra",
    "2402.05109",
    {"hydra": Layout(files.recognises, files.read, files.write)},
    untrained_hydra,
    (HydraModel, ChainHead),
    weight_files=("hydra_lm_head.pt",),
)
