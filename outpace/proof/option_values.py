"""The options with which a recipe is proven, derived from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from outpace.core.contracts import Recipe, Target
from outpace.proof.models import Models
from outpace.recipes._option_kinds import kind_of, kinds_in

THRESHOLD = 0.4  # for options that are numbers between 0 and 1, or compared with such


def choices(
    recipe: Recipe, models: Models, shapes: Sequence[tuple[int, ...]] = (), *, doubled: bool = False
) -> Iterator[dict[str, Any]]:
    """Options to prove a recipe with: defaults first, then one option changed at a time.

    Defaults come with each of these tree shapes (none: the recipe's own). Changed are switches, thresholds,
    words of a choice, models where one may be given; with `doubled` also whole numbers, to twice their
    default.
    """
    hints = get_type_hints(recipe.build)
    base = {name: value for name, hint in hints.items() if (value := _fixture(hint, models)) is not None}
    for name, parameter in recipe.options.items():
        if parameter.default is inspect.Parameter.empty and name not in base:
            raise TypeError(
                f"{recipe.name}: option {name} needs a default, so that the recipe can be proven as it is"
            )
    base = {name: value for name, value in base.items() if name in recipe.options}
    widths = next((name for name in recipe.options if hints[name] == tuple[int, ...]), None)
    starts = [{**base, widths: shape} for shape in shapes] if widths and shapes else [base]
    yield from starts
    for name, parameter in recipe.options.items():
        hint, default = hints[name], parameter.default
        if hint is bool:
            yield {**starts[0], name: not default}
        elif hint is float:
            yield {**starts[0], name: THRESHOLD}
        elif hint is int and doubled:
            yield {**starts[0], name: 2 * default}
        elif hint == tuple[Target, ...] and len(models.drafts) > 1:
            # every order of siblings is a choice: several drafters are proven with one candidate each
            yield {**starts[0], name: models.drafts, **({widths: (1,)} if widths else {})}
        for part in _alternatives(hint):
            for value in get_args(part) if get_origin(part) is Literal else _optional(part, models):
                if value != default:
                    yield {**starts[0], name: value}


def plain(recipe: Recipe, options: dict[str, Any]) -> dict[str, Any]:
    """The options that are plain data, without models and files."""
    hints = get_type_hints(recipe.build)
    return {name: value for name, value in options.items() if not _opened(hints[name], value)}


def _fixture(hint: Any, models: Models) -> Any:
    """What an option is given in every proof; None where it keeps its default."""
    if hint == tuple[Target, ...]:
        return models.drafts[:1]
    for part in _alternatives(hint) or (hint,):
        if (kind := kind_of(part)) and (kind.essential or part is hint):
            return kind.fixture(models)
    return None


def _optional(part: Any, models: Models) -> list[Any]:
    """A model for an option that may have one."""
    kind = kind_of(part)
    return [kind.fixture(models)] if kind and not kind.essential else []


def _opened(hint: Any, value: Any) -> bool:
    each = value if isinstance(value, tuple) and value else (value,)
    return any(kind.accepts(part) for kind in kinds_in(hint) for part in each)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """What an option may be, where that is a choice."""
    if get_origin(hint) in (Union, UnionType):
        return get_args(hint)
    return (hint,) if get_origin(hint) is Literal else ()
