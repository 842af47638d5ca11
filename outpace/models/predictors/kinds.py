"""The kinds of predictors: one `PredictorKind` for each folder beside this file.

A folder has the network and its `PredictorKind` as `KIND` in `predictor.py`, and its training in `lesson.py`.
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
    """A kind of predictor, as the rest of the package uses it."""

    predictor: type[Predictor]
    title: str  # of its method, on cards
    paper: str  # number on arXiv
    untrained: Callable[[Any, Target], Predictor]  # (target, draft model) -> one with random weights


@cache
def predictor_kinds() -> tuple[PredictorKind, ...]:
    """All kinds."""
    names = [folder.name for folder in pkgutil.iter_modules(predictors.__path__) if folder.ispkg]
    return tuple(import_module(f"{predictors.__name__}.{name}.predictor").KIND for name in names)
