"""All methods of `outpace train`, found in the folders of draft heads and predictors and in this one."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from outpace.models import heads, predictors
from outpace.training import draft_methods, exit_methods
from outpace.training.config import ConfigError
from outpace.training.method import TrainingMethod


@cache
def methods() -> dict[str, TrainingMethod]:
    """All of them by name: those of heads first, then those of draft models, predictors and targets."""
    lessons = [
        import_module(module)
        for package in (heads, predictors)
        for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        if each.ispkg and find_spec(module := f"{each.name}.lesson")
    ]
    found: list[TrainingMethod] = []
    for module in (*lessons, draft_methods, exit_methods):
        found.extend(module.METHODS)
    nouns = list(dict.fromkeys(each.noun for each in found))
    return {each.name: each for each in sorted(found, key=lambda each: nouns.index(each.noun))}


def named(method: str) -> TrainingMethod:
    """The method of this name. ConfigError if there is none."""
    if method not in methods():
        raise ConfigError(f"{method} has no drafter to train: use {', '.join(methods())}")
    return methods()[method]
