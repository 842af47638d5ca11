"""The methods of a server: the parts of each, for one target."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from outpace.api.methods import choose_method
from outpace.api.model import Model
from outpace.api.opener import ModelOpener, short_drafts
from outpace.core.contracts import Guarantee, Parts, Recipe
from outpace.recipes import DRAFTS, configure, resolve_recipe
from outpace.recipes._exact import check_exact

MAX_LENGTH = 1 << 20  # tokens of prompt and output where the model has no maximum length
log = logging.getLogger(__name__)


def open_methods(
    model: Model,
    method: Recipe,
    options: Mapping[str, Any],
    others: Sequence[tuple[str, Mapping[str, Any]]] = (),
    max_length: int | None = None,
    *,
    exact: bool = False,
) -> dict[str, Parts]:
    """Method name -> its parts, the first method first. Drafts that read shorter texts than the model are
    logged.

    `others`: names of further methods with their options; they have the first one's draft unless these have
    one, or an alternative to it. `max_length`: tokens of prompt and output; None: as many as the model
    reads. `exact`: all of them have to be EXACT with their options. ValueError for an unknown method or
    invalid options, if the first method's verifier is not exact for the drafts of another, if the first of
    several methods is GREEDY, as its verifier is that of all, or if one of several is LOSSY or has a
    schedule: all requests of a server have one target and one loop.
    """
    draft = {name: value for name, value in options.items() if name in DRAFTS}
    found: dict[str, Parts] = {}
    short: dict[str, None] = {}
    for each, given in [(method, options), *others]:
        recipe = resolve_recipe(each)
        shared = {name: value for name, value in draft.items() if recipe.is_open(name, given)}
        recipe, chosen = choose_method(recipe, shared | dict(given), model.name)
        values = configure(recipe, model.target, _own(recipe, chosen), ModelOpener(model))
        parts = recipe(model.target, **values)
        found[recipe.name] = check_exact(recipe, parts) if exact else parts
        short |= dict.fromkeys(short_drafts(values, max_length or model.max_length or MAX_LENGTH))
    lossy = [name for name, parts in found.items() if parts.guarantee is Guarantee.LOSSY]
    if lossy and len(found) > 1:
        raise ValueError(f"{lossy[0]} is LOSSY, so other methods would give its texts: serve it alone")
    first = next(iter(found))
    if found[first].guarantee is not Guarantee.EXACT and len(found) > 1:
        raise ValueError(
            f"{first} is {found[first].guarantee.name} and its verifier judges the drafts of all methods: "
            "name an EXACT method first, or serve it alone"
        )
    if len(found) > 1 and (own := [name for name, parts in found.items() if parts.schedule]):
        raise ValueError(f"{own[0]} decodes by a schedule of its own, so no other method can: serve it alone")
    for sentence in short:
        log.warning(sentence)
    return found


def _own(recipe: Recipe, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without drafts that the recipe does not take."""
    return {name: value for name, value in options.items() if name in recipe.options or name not in DRAFTS}
