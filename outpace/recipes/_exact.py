"""The refusal of methods that change the distribution of the output, for callers who do not want that."""

from __future__ import annotations

from outpace.core.contracts import Guarantee, Parts, Recipe
from outpace.recipes._options import RecipeError


def check_exact(recipe: Recipe, parts: Parts) -> Parts:
    """The parts of a method with the options that were given; RecipeError unless they are EXACT, which names
    the options with which a LOSSY method is."""
    if parts.guarantee is Guarantee.EXACT:
        return parts
    limit = ", ".join(f"{name}={value}" for name, value in recipe.exact_with.items())
    raise RecipeError(
        f"{recipe.name} is {parts.guarantee.name} with these options: "
        + (f"give {limit}, which makes it EXACT, or " if limit else "")
        + "choose an EXACT method of `outpace list`"
    )
