"""The kind of head that DFlash drafts with: its method, paper and file formats."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.dflash import speculators, zlab
from outpace.models.heads.dflash.head import untrained_dflash
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import EngineSupport, HeadKind, Layout
from outpace.models.heads.opened_head import ChainHead

DFlashModel = NewType("DFlashModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "dflash",
    "DFlash",
    "2602.06036",
    {
        "z-lab": Layout(zlab.recognises, zlab.read, zlab.write),
        "speculators": Layout(speculators.recognises, speculators.read, speculators.write),
    },
    untrained_dflash,
    (DFlashModel, ChainHead),
    engines={"vllm": EngineSupport("dflash", "speculators"), "sglang": EngineSupport("DFLASH", "z-lab")},
)
