"""All methods of `outpace train`, found in the folders of draft heads and predictors and in this one."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from outpace.models import heads, predictors
from outpace.training import draft_methods, exit_methods, fragment_methods, window_methods
from outpace.training.config import ConfigError
from outpace.training.method import TrainingMethod


@cache
def methods() -> dict[str, TrainingMethod]:
    """All methods by name: first those that train heads, then draft models, predictors and targets."""
    lessons = [
        import_module(module)
        for package in (heads, predictors)
        for folder in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        if folder.ispkg and find_spec(module := f"{folder.name}.lesson")
    ]
    every_method: list[TrainingMethod] = []
    for module in (*lessons, draft_methods, window_methods, exit_methods, fragment_methods):
        every_method.extend(module.METHODS)
    nouns = list(dict.fromkeys(method.noun for method in every_method))
    every_method.sort(key=lambda method: nouns.index(method.noun))
    return {method.name: method for method in every_method}


def named(method: str) -> TrainingMethod:
    """The method of this name. ConfigError if there is none."""
    if method not in methods():
        raise ConfigError(f"{method} has no drafter to train: use {', '.join(methods())}")
    return methods()[method]
