"""Which options of a recipe proofs and tests give a value that is opened."""

from __future__ import annotations

from typing import Any

from outpace.recipes._option_kinds import OptionKind, kind_of, kinds_in


def needed_kind(annotation: Any) -> OptionKind | None:
    """The kind of an option that has to be given, or that may be left out only where the target's own
    checkpoint has a head; None for other options."""
    heads = [kind for kind in kinds_in(annotation) if kind.heads and kind.essential]
    return kind_of(annotation) or next(iter(heads), None)
