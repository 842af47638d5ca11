"""The option values with which the distribution test runs a recipe, derived from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from outpace.core.contracts import Recipe, Target
from outpace.proof.models import Models
from outpace.recipes._option_kinds import kind_of, kinds_in

THRESHOLD = 0.4  # tested value of options of type float: probabilities or thresholds of probabilities


def choices(
    recipe: Recipe, models: Models, shapes: Sequence[tuple[int, ...]] = (), *, factor: int = 1
) -> Iterator[dict[str, Any]]:
    """Option values to test a recipe with, as keyword arguments: defaults first, then one option changed at a
    time.

    The defaults are combined with each of the tree shapes in `shapes` (empty: the recipe's default shape),
    and with the recipe's `proven_with` in place of the defaults of these options.
    Options changed: bool (negated), float (`THRESHOLD`), Literal (each value), optional models (given); with
    a `factor` above 1 also int (`factor` times the default). Of options of which one must be given, the first
    is given by default, then each alternative in turn. TypeError for an option without a default that is not
    a model.
    """
    hints = get_type_hints(recipe.build)
    base = {name: value for name, hint in hints.items() if (value := _fixture(hint, models)) is not None}
    for name, parameter in recipe.options.items():
        if parameter.default is inspect.Parameter.empty and name not in base:
            raise TypeError(
                f"{recipe.name}: option {name} needs a default, so that the recipe can be proven as it is"
            )
    base = {name: value for name, value in base.items() if name in recipe.options}
    base |= recipe.proven_with
    for name in recipe.one_of[:1]:
        base[name] = next(kind.fixture(models) for kind in kinds_in(hints[name]))
    widths = next((name for name in recipe.options if hints[name] == tuple[int, ...]), None)
    starts = [{**base, widths: shape} for shape in shapes] if widths and shapes else [base]
    yield from starts
    for name, parameter in recipe.options.items():
        hint, default = hints[name], parameter.default
        if hint is bool:
            yield {**starts[0], name: not default}
        elif hint is float:
            yield {**starts[0], name: THRESHOLD}
        elif hint is int and factor > 1:
            yield {**starts[0], name: factor * default}
        elif hint == tuple[Target, ...] and len(models.drafts) > 1:
            # one candidate for each of several drafters, as every order of siblings multiplies the runs
            yield {**starts[0], name: models.drafts, **({widths: (1,)} if widths else {})}
        for part in _alternatives(hint):
            for value in get_args(part) if get_origin(part) is Literal else _optional(part, models):
                if value != starts[0].get(name, default):
                    yield {**_without_alternatives(recipe, name, starts[0]), name: value}


def _without_alternatives(recipe: Recipe, option: str, options: dict[str, Any]) -> dict[str, Any]:
    dropped = recipe.one_of if option in recipe.one_of else ()
    return {name: value for name, value in options.items() if name not in dropped}


def plain(recipe: Recipe, options: dict[str, Any]) -> dict[str, Any]:
    """The options that are plain data: those whose values are models or opened files are left out."""
    hints = get_type_hints(recipe.build)
    return {name: value for name, value in options.items() if not _opened(hints[name], value)}


def _fixture(hint: Any, models: Models) -> Any:
    """The small test models or index that every exactness test passes for a recipe option with the type
    hint `hint`, such as Target. None if the option keeps its default or is tried in separate tests."""
    if hint == tuple[Target, ...]:
        return models.drafts[:1]
    if get_origin(hint) is tuple and (kind := kind_of(get_args(hint)[0])) and kind.several is not None:
        return kind.several(models)
    for part in _alternatives(hint) or (hint,):
        if (kind := kind_of(part)) and (kind.essential or part is hint):
            return kind.fixture(models)
    return None


def _optional(part: Any, models: Models) -> list[Any]:
    """[test model] if `part` is the type of a model that methods can draft without; else []."""
    kind = kind_of(part)
    return [kind.fixture(models)] if kind and not kind.essential else []


def _opened(hint: Any, value: Any) -> bool:
    parts = value if isinstance(value, tuple) and value else (value,)
    return any(kind.accepts(part) for kind in kinds_in(hint) for part in parts)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The member types of a Union, a Literal itself, and an empty tuple for other types."""
    if get_origin(hint) in (Union, UnionType):
        return get_args(hint)
    return (hint,) if get_origin(hint) is Literal else ()
