"""The kind of head that P-EAGLE drafts with: its method, paper and file formats."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import EngineSupport, HeadKind, Layout
from outpace.models.heads.opened_head import ChainHead
from outpace.models.heads.p_eagle import files
from outpace.models.heads.p_eagle.head import untrained_p_eagle

PEagleModel = NewType("PEagleModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "p-eagle",
    "P-EAGLE",
    "2602.01469",
    {
        "speculators": Layout(files.in_speculators, files.read_speculators, files.write_speculators),
        "raw": Layout(files.in_raw, files.read_raw, files.write_raw),
    },
    untrained_p_eagle,
    (PEagleModel, ChainHead),
    engines={
        "vllm": EngineSupport("eagle3", "speculators", files.refused_by_vllm, {"parallel_drafting": True})
    },
)
