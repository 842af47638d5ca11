"""Options that name several methods: their names are looked up, and their parts are built for one target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outpace.drafters.compose.methods import BuildMethod, Methods
from outpace.recipes import resolve_recipe
from outpace.recipes._method_names import Method, parse_methods
from outpace.recipes._option_kinds import Opener, kind_of
from outpace.recipes._options import RecipeError, configure, hints_of

if TYPE_CHECKING:
    from outpace.core.contracts import Parts, Recipe, Target

DRAFTS = ("draft", "drafts")  # options to which a draft model is given that was not named for one method


def open_methods(value: Any, opener: Opener) -> Methods:
    """The methods named by `value`: a text such as "prompt-lookup:depth=8,suffix-decoding", in brackets or
    not, several such texts, or `Methods` that are a recipe's default. Methods of a default are left out where
    they need something that was not given.

    RecipeError for an unknown method, one that is named twice, and one that itself chooses among methods.
    """
    default = isinstance(value, Methods)
    text = value.text if default else ",".join(value) if isinstance(value, list | tuple) else str(value)
    if text[:1] + text[-1:] in ("()", "[]"):
        text = text[1:-1]
    try:
        methods = parse_methods(text)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    return methods_of(methods, opener, text, all_needed=not default)


def methods_of(
    methods: Sequence[Method], opener: Opener, text: str = "", *, all_needed: bool = True
) -> Methods:
    """These methods; without `all_needed`, those that need something that was not given are left out."""
    builds: dict[str, BuildMethod] = {}
    for method in methods:
        recipe = resolve_recipe(method.name)
        if any(kind and kind.annotation is Methods for kind in map(kind_of, hints_of(recipe).values())):
            raise RecipeError(f"{recipe.name} chooses among methods itself: name the methods instead")
        if method.label in builds:
            raise RecipeError(f"{method.label} is named twice: give each method once, or with other options")
        builds[method.label] = _build(recipe, method, opener, all_needed)
    return Methods(text or ",".join(builds), builds)


def _build(recipe: Recipe, method: Method, opener: Opener, needed: bool) -> BuildMethod:
    def build(target: Target, draft: Target | None) -> Parts | None:
        given = dict(method.options)
        for name in DRAFTS:
            if draft is not None and recipe.is_open(name, given):
                given[name] = draft
        if not needed and any(not any(name in given for name in names) for names in recipe.needs):
            return None
        return recipe(target, **configure(recipe, target, given, opener))

    return build
