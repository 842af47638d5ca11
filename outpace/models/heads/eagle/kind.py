"""The kind of head that EAGLE, EAGLE-2 and HASS draft with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.eagle import files
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.head_model import AnyEagleModel, HeadModel
from outpace.models.heads.kinds import EngineSupport, HeadKind, Layout
from outpace.models.heads.opened_head import ChainHead

EagleModel = NewType("EagleModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "eagle",
    "EAGLE",
    "2401.15077",
    {
        "eagle": Layout(files.recognises, files.read, files.write),
        "sglang": Layout(files.recognises, files.read, files.write_for_sglang),
    },
    untrained_eagle,
    (EagleModel, AnyEagleModel, ChainHead),
    engines={
        "vllm": EngineSupport("eagle", "eagle", files.refused_by_vllm),
        "sglang": EngineSupport("EAGLE", "sglang"),
    },
    asked_last=True,
)
