"""What a proof is about and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outpace.core.contracts import Target
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.proof.enumeration import BOUND
from outpace.proof.reference import Logits


@dataclass(frozen=True)
class Models:
    """A target whose distribution is known, and models to draft for it."""

    name: str
    target: Target
    drafts: tuple[Target, ...]
    logits: Logits  # of the target, computed without the engine
    cross_vocabulary: CrossVocabularyDraft  # a model to draft for it that has other tokens


@dataclass(frozen=True)
class Proof:
    """One enumeration of one recipe, compared with plain decoding."""

    recipe: str
    models: str
    options: dict[str, Any]
    temperatures: tuple[float, ...]
    tokens: int  # length of the longest sampled text
    batch: int  # rows decoded together at the most
    outcomes: int  # different continuations met
    runs: int  # ways to get there
    error: float  # largest difference of a continuation's probability
    seconds: float
    settings: str = ""  # how sampling settings were combined, where they were
    rows: int = 1  # of one prompt whose joint distribution was enumerated
    predicted: bool = False  # with a prediction of the answers, drafted before the recipe's own drafts

    @property
    def holds(self) -> bool:
        return self.error <= BOUND


def told(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are no models."""
    return {name: value for name, value in options.items() if not _is_model(value)}


def _is_model(value: Any) -> bool:
    if isinstance(value, CrossVocabularyDraft):
        return True
    return hasattr(value, "score") or (
        isinstance(value, tuple) and any(hasattr(each, "score") for each in value)
    )
