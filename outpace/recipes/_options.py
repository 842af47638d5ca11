"""Check and convert the options given for a recipe: strings from a command line, JSON values, Python
values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from math import isnan
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from outpace.core.contracts import Recipe, Target
    from outpace.recipes._option_kinds import Opener

PRESET = "preset"  # the option that names a preset
# options whose range depends on the target's number of layers: the methods check them, and name the range
LAYERS = ("exit_layer", "first_layer", "num_skipped")
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class RecipeError(ValueError):
    """A recipe does not exist, cannot be loaded or cannot be built with these options; the message is for
    users."""


class MissingOptionError(RecipeError):
    """A recipe needs an option that was not given."""


def identifier(name: str) -> str:
    """The name in lower case, with dashes in place of underscores, as users see it."""
    return name.strip().lower().replace("_", "-")


def unknown(kind: str, name: str, known: list[str], otherwise: str) -> str:
    """The error message for an unknown name: it suggests up to three names of `known` that begin with it or
    resemble it, else ends with `otherwise`."""
    longer = [each for each in known if name and each.startswith(name)]
    near = longer[:3] or get_close_matches(name, known, n=3, cutoff=0.7)
    return f"there is no {kind} {name}; " + (f"did you mean {' or '.join(near)}?" if near else otherwise)


def configure(
    recipe: Recipe,
    target: Target,
    options: Mapping[str, Any],
    opener: Opener,
    *,
    others: Collection[str] = (),  # further keywords of the call, which the user may have meant
) -> dict[str, Any]:
    """The recipe's keyword arguments: options checked against its signature and converted, models opened. A
    missing draft head is the package's for the target, if it has one. The option `preset` stands for the
    values of that preset.

    Raises RecipeError for an option that the recipe does not have, and for a value of the wrong type or
    unsuited to the target; MissingOptionError for a required option that was not given.
    """
    from outpace.recipes._option_kinds import kind_of, kinds_in

    options = with_preset(recipe, options)
    hints, known = hints_of(recipe), recipe.options
    values: dict[str, Any] = {}
    for given, value in (usual_heads(recipe, options, opener) | dict(options)).items():
        name = given.replace("-", "_")
        if name not in known:
            raise RecipeError(unknown_option(recipe, name, others))
        values[name] = convert(value, hints.get(name, Any), f"{recipe.name}: {name}", opener)
        if type(values[name]) is int and values[name] < 0 and name not in LAYERS:
            raise RecipeError(f"{recipe.name}: {name} is {values[name]}: it is 0 or more")
    for name, parameter in known.items():
        kind = kind_of(hints.get(name))
        if kind and kind.opens_default and name not in values and parameter.default is not parameter.empty:
            values[name] = convert(parameter.default, kind.annotation, name, opener)
    if missing := [names for names in recipe.needs if not any(name in values for name in names)]:
        phrases = [
            next(iter(kind.phrase for name in names for kind in kinds_in(hints.get(name))), "")
            for names in missing
        ]
        what = f": {'; '.join(filter(None, phrases))}" if any(phrases) else ""
        raise MissingOptionError(f"{recipe.name} needs {' and '.join(map(' or '.join, missing))}{what}")
    for name, value in values.items():
        for kind in kinds_in(hints.get(name)):
            for each in value if isinstance(value, tuple) else (value,):
                if kind.accepts(each):
                    kind.check(name, each, target, opener)
    return values


def usual_heads(recipe: Recipe, given: Mapping[str, Any], opener: Opener) -> dict[str, str]:
    """The package's draft heads for the options with heads that the recipe needs and that are not given;
    several are separated by commas."""
    from outpace.recipes._option_kinds import kind_of, kinds_in

    hints, found = hints_of(recipe), dict[str, str]()
    for option in (names[0] for names in recipe.needs if not any(name in given for name in names)):
        for kind in kinds_in(hints.get(option)):
            if kind.heads and (heads := opener.usual_heads(recipe.name, kind.heads)):
                found[option] = heads[0] if kind_of(hints[option]) else ",".join(heads)
    return found


def with_preset(recipe: Recipe, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with those of the preset that the option `preset` names in its place; an option that is
    given besides replaces the preset's. RecipeError if the recipe has no preset of this name."""
    given = {name.replace("-", "_"): value for name, value in options.items()}
    if PRESET in recipe.options or (preset := given.pop(PRESET, None)) is None:
        return given
    if not recipe.presets:
        raise RecipeError(f"{recipe.name} has no presets: leave {PRESET} out")
    if preset not in recipe.presets:
        raise RecipeError(
            unknown(
                f"preset of {recipe.name} called",
                str(preset),
                list(recipe.presets),
                f"it has {', '.join(recipe.presets)}",
            )
        )
    return {**recipe.presets[preset], **given}


def hints_of(recipe: Recipe) -> dict[str, Any]:
    """Option name -> type of its annotation; RecipeError if an annotation cannot be evaluated."""
    try:
        return get_type_hints(recipe.build)
    except NameError as error:
        raise RecipeError(
            f"the recipe {recipe.name} has an annotation that cannot be read: {error}"
        ) from error


def unknown_option(recipe: Recipe, name: str, others: Collection[str] = ()) -> str:
    """The error message for an option that the recipe does not have; it may suggest one of `others`."""
    known = list(recipe.options)
    has = f"it has {', '.join(known)}" if known else "it has none"
    return unknown("option of " + recipe.name + " called", name, [*known, *others], has)


def wants_cross_vocabulary(recipe: Recipe, name: str) -> bool:
    """Whether this option of a recipe is a draft model whose vocabulary may differ from the target's."""
    from outpace.models.vocabulary import CrossVocabularyDraft

    return hints_of(recipe).get(name) is CrossVocabularyDraft


def convert(value: Any, hint: Any, name: str, opener: Opener) -> Any:
    """The value converted to its annotation `hint`: strings are parsed, models opened. RecipeError if that is
    impossible."""
    from outpace.recipes._option_kinds import kind_of

    if get_origin(hint) in (Union, UnionType):
        return _first_that_fits(value, get_args(hint), name, opener)
    if kind := kind_of(hint):
        return value if kind.accepts(value) else kind.open(value, opener)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise RecipeError(f"{name} is {' or '.join(map(str, get_args(hint)))}, not {value!r}")
        return value
    if get_origin(hint) is tuple:
        parts = (
            [part for part in value.split(",") if part and value != "none"]
            if isinstance(value, str)
            else value
        )
        each = get_args(hint)[0]
        if not isinstance(parts, list | tuple):
            parts = [parts]
        return tuple(convert(part, each, name, opener) for part in parts)
    if hint is bool:
        word = str(value).lower()
        if word not in YES + NO:
            raise RecipeError(f"{name} is true or false, not {value!r}")
        return word in YES
    if hint in (int, float):
        try:
            number = hint(value)
        except (TypeError, ValueError, OverflowError):  # the last one: infinity as a whole number
            number = None
        whole = hint is not int or number is None or number == float(value)
        if number is None or isnan(number) or isinstance(value, bool) or not whole:
            kind = "a whole number" if hint is int else "a number"
            raise RecipeError(f"{name} is {kind}, not {value!r}")
        return number
    if hint is str:
        return str(value)
    return value


def _first_that_fits(value: Any, hints: tuple[Any, ...], name: str, opener: Opener) -> Any:
    if type(None) in hints and (value is None or value == "none"):
        return None
    problem: RecipeError | None = None
    for hint in (hint for hint in hints if hint is not type(None)):
        try:
            return convert(value, hint, name, opener)
        except RecipeError as error:
            problem = error
    raise problem or RecipeError(f"{name} cannot be {value!r}")
