"""The kinds of predictors: one `PredictorKind` for each folder beside this file.

A folder has the network and its `PredictorKind` as `KIND` in `predictor.py`, and what `outpace train` does
with it in `lesson.py`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from outpace.core.contracts import Target
from outpace.models import predictors
from outpace.models.predictors.predictor import Predictor


@dataclass(frozen=True)
class PredictorKind:
    """What the rest of the package knows of a kind of predictor."""

    predictor: type[Predictor]
    title: str  # of its method, on cards
    paper: str  # number on arXiv
    untrained: Callable[[Any, Target], Predictor]  # for a target and a draft model, with random weights


@cache
def predictor_kinds() -> tuple[PredictorKind, ...]:
    """All kinds."""
    names = [each.name for each in pkgutil.iter_modules(predictors.__path__) if each.ispkg]
    return tuple(import_module(f"{predictors.__name__}.{name}.predictor").KIND for name in names)
