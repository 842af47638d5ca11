"""The kind of head that DART drafts with: its method, paper and file format."""

from __future__ import annotations

from typing import NewType

from outpace.models.heads.dart import files
from outpace.models.heads.dart.head import untrained_dart
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kinds import HeadKind, Layout

DartModel = NewType("DartModel", HeadModel)  # annotation of recipe options

KIND = HeadKind(
    "dart",
    "DART",
    "2601.19278",
    {"raw": Layout(files.recognises, files.read, files.write)},
    untrained_dart,
    (DartModel,),
)
