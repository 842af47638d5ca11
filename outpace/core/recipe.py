"""Recipes: a published method's name, paper and guarantee, and the function that builds its parts."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outpace.core.contracts import Parts


class Guarantee(Enum):
    """The guarantee of a verifier, or of a whole method, about the output's distribution."""

    EXACT = "exact"  # the target's distribution, at any temperature
    GREEDY = "greedy"  # the target's distribution at temperature 0 only
    LOSSY = "lossy"  # another distribution, stated by `Parts.reference`


@cache  # every request reads them several times
def _keyword_only(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


@dataclass(frozen=True, slots=True)
class Recipe:
    """One published method, created by `@recipe` on the one public function of a recipe file."""

    name: str  # the function's and file's name with dashes, as users type it
    paper: str
    summary: str  # first line of the docstring of the recipe file
    family: str
    guarantee: Guarantee  # with the default options
    build: Callable[..., Parts]  # (target, *, option=default, ...) -> parts; defines the recipe's options
    one_of: tuple[str, ...] = ()  # options of which exactly one must be given; None counts as not given
    at_most_one_of: tuple[str, ...] = ()  # options of which one or none is given
    # of a LOSSY method: option values with which its output has the target's distribution
    exact_with: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # option values for proofs, where the defaults change nothing in the small models of proofs or take too
    # many runs
    proven_with: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # preset name -> option values that replace the defaults, which are the paper's
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    def __call__(self, *args: object, **options: object) -> Parts:
        return self.build(*args, **options)

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The keyword-only parameters of `build`, by name."""
        return _keyword_only(self.build)

    @property
    def needs(self) -> list[tuple[str, ...]]:
        """What has to be given: names of options without a default; alternatives are one entry."""
        required = [(name,) for name, p in self.options.items() if p.default is inspect.Parameter.empty]
        return [*required, self.one_of] if self.one_of else required

    def is_open(self, option: str, given: Container[str]) -> bool:
        """Whether the recipe has this option and neither it nor an alternative to it is in `given`."""
        groups = (self.one_of, self.at_most_one_of)
        alternatives = next((group for group in groups if option in group), (option,))
        return option in self.options and not any(name in given for name in alternatives)

    @property
    def option_help(self) -> dict[str, str]:
        """Option name -> one-line description, from the `Args:` section of `build`'s docstring."""
        return help_of(self.build.__doc__ or "")


OPTION_LINE = re.compile(r"    (\w+): (.+)")


def help_of(docstring: str) -> dict[str, str]:
    """Parameter name -> description, from the `Args:` section of a Google-style docstring. Lines with a
    longer indent continue a description."""
    descriptions: dict[str, str] = {}
    name = None
    for line in inspect.cleandoc(docstring).partition("\nArgs:\n")[2].splitlines():
        if match := OPTION_LINE.fullmatch(line):
            name = match[1]
            descriptions[name] = match[2].strip()
        elif name is not None and line.startswith("      "):
            descriptions[name] += f" {line.strip()}"
        else:
            break
    return descriptions


def recipe(
    *,
    paper: str,
    family: str,
    guarantee: Guarantee = Guarantee.EXACT,
    one_of: tuple[str, ...] = (),
    at_most_one_of: tuple[str, ...] = (),
    exact_with: Mapping[str, Any] | None = None,
    proven_with: Mapping[str, Any] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[Callable[..., Parts]], Recipe]:
    """Decorator that makes a Recipe of the function that builds a method's parts. The summary is the first
    line of its module's docstring; `one_of` names options of which exactly one must be given,
    `at_most_one_of` options of which one or none is given; `exact_with` (of LOSSY methods), `proven_with` and
    `presets` are described at Recipe. TypeError for a LOSSY method without `exact_with`, or if these name
    unknown options; and when the function returns something else than Parts."""

    def mark(function: Callable[..., Parts]) -> Recipe:
        @wraps(function)
        def build(*args: Any, **keywords: Any) -> Parts:
            from outpace.core.contracts import Parts

            parts: Any = function(*args, **keywords)
            if not isinstance(parts, Parts):
                returned = "None" if parts is None else f"a {type(parts).__name__}"
                raise TypeError(
                    f"the recipe {name} returned {returned}: return Parts(target, drafter, verifier, "
                    "controller)"
                )
            return parts

        doc = (sys.modules[build.__module__].__doc__ or build.__doc__ or "").strip()
        summary, name = doc.splitlines()[0] if doc else "", build.__name__.replace("_", "-")
        given = dict(exact_with or {}), dict(proven_with or {})
        named = {preset: dict(values) for preset, values in (presets or {}).items()}
        made = Recipe(name, paper, summary, family, guarantee, build, one_of, at_most_one_of, *given, named)
        if guarantee is Guarantee.LOSSY and not made.exact_with:
            raise TypeError(f"{name} is LOSSY: name the option values of its exact limit as exact_with")
        if unknown := [
            option for values in (*given, *named.values()) for option in values if option not in made.options
        ]:
            raise TypeError(
                f"{name} has no option {unknown[0]}, which exact_with, proven_with or presets name"
            )
        return made

    return mark
