"""From a recipe and plain values (strings from a command line, numbers from JSON) to parts that can run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from outpace.core.contracts import Recipe, Target
    from outpace.models.vocabulary import CrossVocabularyDraft

Opening = Callable[[Any, Any], Any]  # what a user gives for another model, the annotation -> that model

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class RecipeError(ValueError):
    """A recipe that does not exist, cannot be loaded or cannot be built this way; the message is for users."""


def identifier(name: str) -> str:
    """The name with dashes, as users see it."""
    return name.strip().lower().replace("_", "-")


def unknown(kind: str, name: str, known: list[str], otherwise: str) -> str:
    """The sentence for a name that is not there, with the nearest ones that are."""
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    return f"there is no {kind} {name}; " + (f"did you mean {' or '.join(near)}?" if near else otherwise)


def configure(
    recipe: Recipe,
    target: Target,
    options: Mapping[str, Any],
    open_model: Callable[[Any], Target],  # what a user gives for another model -> that model
    open_cross_vocabulary: Callable[[Any], CrossVocabularyDraft]
    | None = None,  # the same for one with tokens of its own
    tokenizer: Any = None,  # the target's, where it is known: indexes made for another one are refused
) -> dict[str, Any]:
    """The recipe's keyword arguments: the options checked against its signature, other models opened."""
    from outpace.core.contracts import Target
    from outpace.indexes import store

    def opened(value: Any, hint: Any) -> Any:
        if hint is Target:
            return open_model(value)
        if open_cross_vocabulary is None:
            raise RecipeError(
                f"{recipe.name} translates between two vocabularies, which takes the tokenizers of both models: "
                "use it through outpace.generate or the command line"
            )
        return open_cross_vocabulary(value)

    hints, known = hints_of(recipe), recipe.options
    values: dict[str, Any] = {}
    for given, value in options.items():
        name = given.replace("-", "_")
        if name not in known:
            raise RecipeError(unknown_option(recipe, name))
        values[name] = convert(value, hints.get(name, Any), f"{recipe.name}: {name}", opened)
    missing = [
        name for name, p in known.items() if p.default is inspect.Parameter.empty and name not in values
    ]
    if missing:
        what = ""
        if any(cross_vocabulary_in(hints.get(name)) for name in missing):
            what = ": a smaller model, whatever its vocabulary"
        elif any(models_in(hints.get(name)) for name in missing):
            what = ": a smaller model with the same vocabulary (or use prompt-lookup, which needs none)"
        raise RecipeError(f"{recipe.name} needs {' and '.join(missing)}{what}")
    for name, value in values.items():
        if models_in(hints.get(name)):
            for other in value if isinstance(value, tuple) else (value,):
                if not isinstance(
                    other, str | None
                ):  # an option may take a word, or nothing, in place of a model
                    same_size(target, other, name)
        if tokenizer is not None and value is not None and index_in(hints.get(name)):
            store.speaks(str(value), store.fingerprint(tokenizer.get_vocab()))
    return values


def hints_of(recipe: Recipe) -> dict[str, Any]:
    """The annotation of each option, as a type."""
    try:
        return get_type_hints(recipe.build)
    except NameError as error:
        raise RecipeError(
            f"the recipe {recipe.name} has an annotation that cannot be read: {error}"
        ) from error


def unknown_option(recipe: Recipe, name: str) -> str:
    """The sentence for an option that the recipe does not have."""
    known = [identifier(option) for option in recipe.options]
    has = f"it has {', '.join(known)}" if known else "it has none"
    return unknown("option of " + recipe.name + " called", identifier(name), known, has)


def models_in(hint: Any) -> bool:
    """Whether an option of this annotation is another model, or several."""
    from outpace.core.contracts import Target

    return hint is Target or any(models_in(part) for part in get_args(hint))


def cross_vocabulary_in(hint: Any) -> bool:
    """Whether an option of this annotation is a model that may have a vocabulary of its own."""
    from outpace.models.vocabulary import CrossVocabularyDraft

    return hint is CrossVocabularyDraft


def index_in(hint: Any) -> bool:
    """Whether an option of this annotation is the file of an index."""
    from outpace.indexes.store import IndexFile

    return hint is IndexFile or any(index_in(part) for part in get_args(hint))


def wants_cross_vocabulary(recipe: Recipe, name: str) -> bool:
    """Whether this option of a recipe is a model that may have a vocabulary of its own."""
    return cross_vocabulary_in(hints_of(recipe).get(name))


def same_size(target: Target, other: Target, name: str) -> None:
    """Refuse a draft whose tokens cannot be the target's."""
    if other.vocab != target.vocab:
        raise RecipeError(
            f"the {name} model has a vocabulary of {other.vocab} tokens and the target one of {target.vocab}: "
            "use a smaller model of the target's own family, a method that translates such as tli, "
            "or one that needs no model such as prompt-lookup"
        )


def convert(value: Any, hint: Any, name: str, opened: Opening) -> Any:
    """A value as the annotation wants it; strings are read, models are opened."""
    from outpace.core.contracts import Target

    if get_origin(hint) in (Union, UnionType):
        return _first_that_fits(value, get_args(hint), name, opened)
    if hint is Target or cross_vocabulary_in(hint):
        return opened(value, hint)
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
        return tuple(convert(part, each, name, opened) for part in parts)
    if hint is bool:
        word = str(value).lower()
        if word not in YES + NO:
            raise RecipeError(f"{name} is true or false, not {value!r}")
        return word in YES
    if hint in (int, float):
        try:
            number = hint(value)
        except (TypeError, ValueError):
            number = None
        if number is None or isinstance(value, bool) or (hint is int and number != float(value)):
            kind = "a whole number" if hint is int else "a number"
            raise RecipeError(f"{name} is {kind}, not {value!r}")
        return number
    if hint is str or index_in(hint):
        return str(value)
    return value


def _first_that_fits(value: Any, hints: tuple[Any, ...], name: str, opened: Opening) -> Any:
    if type(None) in hints and (value is None or value == "none"):
        return None
    problem: RecipeError | None = None
    for hint in (hint for hint in hints if hint is not type(None)):
        try:
            return convert(value, hint, name, opened)
        except RecipeError as error:
            problem = error
    raise problem or RecipeError(f"{name} cannot be {value!r}")
