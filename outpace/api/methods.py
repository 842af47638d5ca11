"""Which method a request uses, where the caller leaves it open, and with which draft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outpace.core.contracts import Recipe
from outpace.models.names import usual_draft
from outpace.recipes import get, own_options, resolve_recipe, wants_cross_vocabulary

WITH_DRAFT, WITHOUT_DRAFT = "speculative-sampling", "prompt-lookup"
DRAFTS = ("draft", "drafts")  # options that take draft models


def choose_method(
    method: str | Path | Recipe | None, options: Mapping[str, Any], target: str
) -> tuple[Recipe, dict[str, Any]]:
    """The recipe, and its options under their own names with the target's usual draft filled in.

    Raises RecipeError for a method or an option that does not exist.
    """
    if method is None:
        recipe = default_method(target, has_draft=any(name in options for name in DRAFTS))
    else:
        recipe = resolve_recipe(method)
    found = own_options(recipe, options)
    for name in DRAFTS:
        if name in recipe.options and name not in found:
            usual = usual_draft(target, cross_vocabulary=wants_cross_vocabulary(recipe, name))
            if usual is not None:
                found[name] = usual
    return recipe, found


def default_method(target: str, *, has_draft: bool) -> Recipe:
    """speculative-sampling if a draft is given or the target (a name) has a usual one, else prompt-lookup."""
    return get(WITH_DRAFT if has_draft or usual_draft(target) is not None else WITHOUT_DRAFT)
