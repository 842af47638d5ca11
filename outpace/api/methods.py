"""The method of a request and its default draft model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outpace.core.contracts import Recipe
from outpace.models.names import usual_draft
from outpace.recipes import DRAFTS, default_method, get, own_options, resolve_recipe, wants_cross_vocabulary


def choose_method(
    method: str | Path | Recipe | None, options: Mapping[str, Any], target: str
) -> tuple[Recipe, dict[str, Any]]:
    """The recipe, and its options by the recipe's own names; a missing draft is the target's usual draft.

    Raises RecipeError for an unknown method or option.
    """
    if method is None:
        recipe = get(default_method(target, has_draft=any(name in options for name in DRAFTS)))
    else:
        recipe = resolve_recipe(method)
    found = own_options(recipe, options)
    for name in DRAFTS:
        if recipe.is_open(name, found):
            usual = usual_draft(target, cross_vocabulary=wants_cross_vocabulary(recipe, name))
            if usual is not None:
                found[name] = usual
    return recipe, found
