"""The kind of head that Medusa drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.kinds import EngineSupport, HeadKind, Layout
from outpace.models.heads.medusa import files
from outpace.models.heads.medusa.head import untrained_medusa
from outpace.models.heads.opened_head import ChainHead
from outpace.models.heads.position_model import PositionModel

MedusaModel = NewType("MedusaModel", PositionModel)  # annotation of recipe options

KIND = HeadKind(
    "medusa",
    "Medusa",
    "2401.10774",
    {"medusa": Layout(files.recognises, files.read, files.write)},
    untrained_medusa,
    (MedusaModel, ChainHead),
    engines={"vllm": EngineSupport("medusa", "medusa", files.refused_by_vllm)},
    weight_files=("medusa_lm_head.safetensors", "medusa_lm_head.pt"),
)
