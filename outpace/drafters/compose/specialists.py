"""The value of a recipe option that names draft models for one language or domain each."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.core.contracts import Target
from outpace.indexes.prompt_profile import PromptProfile


@dataclass(frozen=True, eq=False)
class Specialist:
    """A draft model and the profile of the prompts on whose answers it was trained."""

    model: Target
    profile: PromptProfile


@dataclass(frozen=True, eq=False)
class Specialists:
    """Draft models for one language or domain each, with the target's vocabulary."""

    each: tuple[Specialist, ...]
