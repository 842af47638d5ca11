"""The kind of head that DSpark drafts with: its method, paper and file formats."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.dspark import deepspec, speculators
from outpace.models.heads.dspark.head import untrained_dspark
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import EngineSupport, HeadKind, Layout
from outpace.models.heads.opened_head import ChainHead

DSparkModel = NewType("DSparkModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "dspark",
    "DSpark",
    "2607.05147",
    {
        "deepspec": Layout(deepspec.recognises, deepspec.read, deepspec.write),
        "speculators": Layout(speculators.recognises, speculators.read, speculators.write),
    },
    untrained_dspark,
    (DSparkModel, ChainHead),
    engines={"vllm": EngineSupport("dspark", "deepspec"), "sglang": EngineSupport("DSPARK", "deepspec")},
)
