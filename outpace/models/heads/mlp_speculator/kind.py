"""The kind of head that MLP speculators are: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.kinds import HeadKind, Layout
from outpace.models.heads.mlp_speculator import files
from outpace.models.heads.mlp_speculator.head import untrained_mlp_speculator
from outpace.models.heads.opened_head import ChainHead
from outpace.models.heads.position_model import PositionModel

MlpSpeculatorModel = NewType("MlpSpeculatorModel", PositionModel)  # annotation of recipe options

KIND = HeadKind(
    "mlp-speculator",
    "MLP speculator",
    "2404.19124",
    {"mlp-speculator": Layout(files.recognises, files.read, files.write)},
    untrained_mlp_speculator,
    (MlpSpeculatorModel, ChainHead),
)
