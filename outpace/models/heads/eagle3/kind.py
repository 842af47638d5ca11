"""The kind of head that EAGLE-3 drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.eagle3 import raw, speculators
from outpace.models.heads.eagle3.head import untrained_eagle3
from outpace.models.heads.head_model import AnyEagleModel, HeadModel
from outpace.models.heads.kinds import EngineSupport, HeadKind, Layout
from outpace.models.heads.opened_head import ChainHead

Eagle3Model = NewType("Eagle3Model", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "eagle3",
    "EAGLE-3",
    "2503.01840",
    {
        "speculators": Layout(speculators.recognises, speculators.read, speculators.write),
        "raw": Layout(raw.recognises, raw.read, raw.write),
    },
    untrained_eagle3,
    (Eagle3Model, AnyEagleModel, ChainHead),
    engines={
        "vllm": EngineSupport("eagle3", "speculators"),
        "sglang": EngineSupport("EAGLE3", "raw"),
    },
)
