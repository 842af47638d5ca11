"""What `outpace bench` adds to the methods that it is given: a plain one, and draft models."""

from __future__ import annotations

from typing import Any

from outpace.core.contracts import Recipe
from outpace.recipes import Method, wants_cross_vocabulary

PLAIN = "autoregressive"


def with_draft(method: Method, recipe: Recipe, draft: Any, cross_vocabulary: Any = None) -> dict[str, Any]:
    """The method's options, with the benchmark's draft model where the recipe has a draft option, and neither
    it nor an alternative to it is given.

    `cross_vocabulary` is the draft model for recipes whose draft has another vocabulary; None: `draft` for
    them too.
    """
    given = dict(method.options)
    for name in ("draft", "drafts"):
        if recipe.is_open(name, given):
            usual = (
                cross_vocabulary
                if cross_vocabulary is not None and wants_cross_vocabulary(recipe, name)
                else draft
            )
            if usual is not None:
                given[name] = usual
    return given
