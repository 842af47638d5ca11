"""Which options a recipe is proven with, read from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from outpace.core.contracts import Recipe, Target
from outpace.models.vocabulary import CrossVocabularyDraft


def choices(
    recipe: Recipe,
    drafts: Sequence[Target],
    cross_vocabulary: CrossVocabularyDraft,
    shapes: Sequence[tuple[int, ...]],
) -> Iterator[dict[str, Any]]:
    """Options to prove a recipe with: its defaults, each switch turned, each threshold at work, each word of a choice,
    a model where one may be given, small tree shapes."""
    hints = get_type_hints(recipe.build)
    base: dict[str, Any] = {}
    for name, parameter in recipe.options.items():
        if hints[name] is Target:
            base[name] = drafts[0]
        elif hints[name] == tuple[Target, ...]:
            base[name] = tuple(drafts[:1])
        elif hints[name] is CrossVocabularyDraft:
            base[name] = cross_vocabulary
        elif parameter.default is inspect.Parameter.empty:
            raise TypeError(
                f"{recipe.name}: option {name} needs a default, so that the recipe can be proven as it is"
            )
    widths = next((name for name in recipe.options if hints[name] == tuple[int, ...]), None)
    starts = [{**base, widths: shape} for shape in shapes] if widths else [base]
    yield from starts
    for name, parameter in recipe.options.items():
        if hints[name] is bool:
            yield {**starts[0], name: not parameter.default}
        elif hints[name] is float:
            yield {**starts[0], name: 0.4}
        elif hints[name] == tuple[Target, ...] and len(drafts) > 1:
            # every sibling order is a choice: several drafters are shown on one candidate each
            yield {**starts[0], name: tuple(drafts), **({widths: (1,)} if widths else {})}
        for kind in _kinds(hints[name]):
            for value in (
                drafts[:1] if kind is Target else get_args(kind) if get_origin(kind) is Literal else ()
            ):
                if value != parameter.default:
                    yield {**starts[0], name: value}


def _kinds(hint: Any) -> tuple[Any, ...]:
    """What an option may be, where that is a choice."""
    if get_origin(hint) in (Union, UnionType):
        return get_args(hint)
    return (hint,) if get_origin(hint) is Literal else ()
