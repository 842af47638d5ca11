"""Build the contenders of a benchmark: plain decoding first, then the methods, then the peers."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from outpace.api.opener import draft_lengths
from outpace.bench.measure import synthetic
from outpace.bench.measure.contender import EAGER, Contender, MethodContender
from outpace.bench.measure.method_names import PLAIN, with_draft
from outpace.bench.measure.recommend import MethodChoice
from outpace.bench.measure.transformers_peer import peers
from outpace.core.contracts import Recipe, Target
from outpace.recipes import Method, MissingOptionError, configure, from_file, get, own_options, with_preset
from outpace.recipes._exact import check_exact
from outpace.recipes._option_kinds import Opener

ALONE = "plain, one at a time"


def find(name: str) -> Recipe:
    """The recipe of this name, or the recipe in this file."""
    return from_file(name) if name.endswith(".py") or Path(name).is_file() else get(name)


def check_names(methods: Sequence[Method]) -> None:
    """RecipeError for a method that does not exist; needs no model."""
    for method in methods:
        if method.name != synthetic.NAME:
            find(method.name)


def method_contenders(
    methods: Sequence[Method],
    target: Target,
    draft: str | None,  # name of the benchmark's draft model, as the user gave it
    opener: Opener,
    cross_vocabulary: str | None = None,  # draft model with another vocabulary; None: `draft`
    *,
    optional: Container[str] = (),  # labels of methods that are left out if they cannot be built
    exact: bool = False,  # methods that are not EXACT with their options are refused
    left_out: dict[str, str] | None = None,  # gets {label of a method that is left out: reason}
) -> tuple[list[MethodContender], dict[str, MethodChoice]]:
    """A contender per method, plain decoding first, and {contender's name: method for a recommendation}.

    ValueError for a method that needs something which was not given or does not suit the target, unless it is
    `optional`."""
    found: dict[str, MethodContender] = {"plain": MethodContender("plain", PLAIN, get(PLAIN)(target))}
    choices: dict[str, MethodChoice] = {"plain": MethodChoice(PLAIN, {}, None)}

    def leave_out(method: Method, error: ValueError) -> None:
        if method.label not in optional:
            raise error
        if left_out is not None:
            left_out[method.label] = str(error)

    for method in methods:
        if method.name == PLAIN or method.label in found:
            continue
        if method.name == synthetic.NAME:
            found[method.label] = synthetic.SyntheticContender.of(method, target)
            continue
        recipe = find(method.name)
        own = replace(method, options=own_options(recipe, method.options))
        given = with_draft(own, recipe, draft, cross_vocabulary)
        try:
            arguments = configure(recipe, target, given, opener)
        except MissingOptionError as error:
            leave_out(method, error)
            continue
        build = partial(recipe, target, **arguments)
        try:
            parts = check_exact(recipe, build()) if exact else build()
        except ValueError as error:
            leave_out(method, error)
            continue
        defaults = {
            name: option.default
            for name, option in recipe.options.items()
            if option.default is not option.empty
        }
        found[method.label] = MethodContender(
            method.label,
            recipe.name,
            parts,
            {**defaults, **with_preset(recipe, method.options)},
            build=build,
            max_length=min((limit for _, limit in draft_lengths(arguments)), default=None),
        )
        needed = next((given[name] for name in ("draft", "drafts") if isinstance(given.get(name), str)), None)
        plain = {
            name: value for name, value in given.items() if isinstance(value, (bool, int, float, str, tuple))
        }
        could_adapt = "adaptive" in recipe.options and not {"adaptive", "tree"} & set(method.options)
        choices[method.label] = MethodChoice(method.name, plain, needed, could_adapt)
    return list(found.values()), choices


def compiled_and_eager(
    compiled: Sequence[MethodContender], eager: Sequence[MethodContender]
) -> list[MethodContender]:
    """Each compiled contender followed by its eager counterpart, whose name is marked `(eager)`."""
    pairs = zip(compiled, eager, strict=True)
    return [each for one, other in pairs for each in (one, replace(other, name=f"{other.name} ({EAGER})"))]


def contenders(
    found: Sequence[MethodContender],
    peer_models: Mapping[str, Any]
    | None,  # "target" and, if there is a draft model, "draft": transformers models loaded for the peer
    batch: int = 1,
    eager: Sequence[
        MethodContender
    ] = (),  # the same methods with eager forwards, to be measured besides the compiled ones
) -> list[Contender]:
    """All contenders in order: the methods, plain decoding of one prompt at a time if `batch` is above 1, and
    transformers' `generate` if its models are given."""
    line: list[Contender] = list(compiled_and_eager(found, eager) if eager else found)
    if batch > 1:
        line.append(replace(found[0], name=ALONE, single=True))
    if peer_models:
        line += peers(peer_models["target"], peer_models.get("draft"), found)
    return line
