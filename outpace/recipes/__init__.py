"""Recipes: one file per published method, in a folder per family; looked up by file name, imported at first
use. A long method is a folder of its own, with the recipe in `recipe.py` and its parts beside it.

Calling the package itself, `outpace.recipes()`, returns the catalogue.
"""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from outpace.recipes._catalogue import Entry, RecipeSource, catalogue, options_in, source_of
from outpace.recipes._defaults import DRAFTS, default_method
from outpace.recipes._method_names import Method, option_value, parse_methods, split_outside
from outpace.recipes._options import (
    MissingOptionError,
    RecipeError,
    configure,
    identifier,
    unknown,
    wants_cross_vocabulary,
    with_preset,
)
from outpace.recipes._planned import why_missing
from outpace.recipes._spellings import SPELLINGS, VLLM_METHODS, other_names, own_options

if TYPE_CHECKING:
    from outpace.core.contracts import Recipe

__all__ = [
    "DRAFTS",
    "Entry",
    "Method",
    "MissingOptionError",
    "RecipeError",
    "RecipeSource",
    "SPELLINGS",
    "VLLM_METHODS",
    "configure",
    "default_method",
    "entries",
    "find",
    "from_file",
    "get",
    "identifier",
    "names",
    "option_value",
    "other_names",
    "own_options",
    "parse_methods",
    "read_options",
    "resolve_recipe",
    "split_outside",
    "wants_cross_vocabulary",
    "with_preset",
]

FOLDER = Path(__file__).parent
GROUP = "outpace.recipes"


@cache
def files() -> dict[str, Path]:
    """Recipe name -> source file, for the recipes of this package: FAMILY/METHOD.py or
    FAMILY/METHOD/recipe.py. They are listed once: names are looked up hundreds of times."""
    found = {path.stem: path for path in FOLDER.glob("*/*.py") if not path.name.startswith("_")}
    found |= {path.parent.name: path for path in FOLDER.glob("*/*/recipe.py")}
    return {identifier(name): path for name, path in sorted(found.items())}


@cache
def plugins() -> dict[str, EntryPoint]:
    """Recipe name -> entry point, for the recipes of other installed packages; a name in this package takes
    precedence."""
    return {identifier(point.name): point for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """Sorted names of all recipes that `get` accepts, this package's and plugins; imports none of them."""
    return sorted({*files(), *plugins()})


def entries(extra: str | Path | None = None) -> list[Entry]:
    """The catalogue, read from source files without importing them; `extra` is a further recipe file.
    RecipeError if it is no Python."""
    found = files() | {name: path for name, point in plugins().items() if (path := source_of(point.module))}
    if not extra:
        return catalogue(dict(sorted(found.items())))
    own = identifier(Path(extra).stem)
    known = catalogue({name: path for name, path in sorted(found.items()) if name != own})
    try:
        return [*known, *catalogue({own: Path(extra)})]
    except (OSError, SyntaxError, ValueError) as error:  # no file, no Python, no text
        raise RecipeError(
            f"{extra} is no recipe file ({described(error)}); `outpace new my-method` writes one to start "
            "from"
        ) from error


def of_family(family: str) -> list[str]:
    """Names of the methods of this family; RecipeError (a ValueError) if there is none."""
    found = entries()
    names = [entry.name for entry in found if entry.family == family]
    if not names:
        families = ", ".join(sorted({entry.family for entry in found if entry.family}))
        raise RecipeError(f"there is no method of the family {family}; the families are {families}")
    return names


def get(name: str) -> Recipe:
    """The recipe of this name, with dashes or underscores; imports its file only. RecipeError if there is
    none or it cannot be imported."""
    wanted, module = identifier(name), module_of(name)
    try:
        recipe = recipe_in(import_module(module), module)
    except RecipeError:
        raise
    except Exception as error:
        raise RecipeError(
            f"the recipe {wanted} cannot be imported from {module}: {described(error)}"
        ) from error
    if recipe.name != wanted and wanted not in files():
        raise RecipeError(_misnamed(wanted, recipe.name))
    return recipe


def read_options(method: str | Path) -> RecipeSource | None:
    """The options of the recipe of this name or in this file, read from its source: that is a matter of
    milliseconds. None if only importing it tells them; RecipeError if there is no recipe of this name."""
    if is_file(method):
        return options_in(Path(method))
    name = identifier(str(method))
    path = files().get(name) or source_of(module_of(name))
    return options_in(path) if path else None


def is_file(method: str | Path) -> bool:
    """Whether a method is given as a recipe file, not by its name."""
    return isinstance(method, Path) or method.endswith(".py")


def module_of(name: str) -> str:
    """The module with the recipe of this name; it is not imported. RecipeError if there is none."""
    wanted = identifier(name)
    if wanted in files():
        return ".".join([__name__, *files()[wanted].relative_to(FOLDER).with_suffix("").parts])
    if wanted in plugins():
        return plugins()[wanted].module
    if point := _entry_point_of(wanted):
        raise RecipeError(_misnamed(point, wanted))
    if ours := VLLM_METHODS.get(theirs := wanted.replace("-", "_")):
        raise RecipeError(f"vLLM's method {theirs} is {ours} here: use that name")
    if reason := why_missing(wanted):
        raise RecipeError(reason)
    raise RecipeError(unknown("method", wanted, names(), "`outpace list` shows them all"))


def _entry_point_of(recipe: str) -> str | None:
    """The name of the entry point that registers this recipe under a name other than the recipe's own; None
    if there is none."""
    for name, point in plugins().items():
        path = source_of(point.module)
        if path and any(entry.name == recipe for entry in catalogue({name: path})):
            return name
    return None


def _misnamed(point: str, recipe: str) -> str:
    return f"the entry point {point} of the group {GROUP} is the recipe {recipe}: give both one name"


def from_file(path: str | Path) -> Recipe:
    """The recipe in a file outside the package; RecipeError if the file is missing or cannot be loaded."""
    path = Path(path)
    if not path.is_file():
        raise RecipeError(f"there is no recipe file {path}; `outpace new my-method` writes one to start from")
    module_name = f"outpace_recipe_file_{path.stem}"
    spec = spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{path} is not a Python file; a recipe file ends in .py")
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # @recipe reads the docstring of its module from sys.modules
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise RecipeError(f"the recipe file {path} cannot be loaded: {described(error, path)}") from error
    return recipe_in(module, str(path))


def resolve_recipe(method: str | Path | Recipe) -> Recipe:
    """The recipe for a method name or the path of a recipe file; a Recipe is returned unchanged. RecipeError
    if it cannot be loaded."""
    if isinstance(method, str | Path):
        return from_file(method) if is_file(method) else get(str(method))
    from outpace.core.contracts import Recipe

    if isinstance(method, Recipe):
        return method
    raise RecipeError(f"a method is a name, a recipe or a recipe file, not a {type(method).__name__}")


def find(extra: str | Path | None = None) -> dict[str, Recipe]:
    """Recipe name -> recipe, all of them imported; `extra` is a further recipe file."""
    found = {name: get(name) for name in names()}
    if extra is not None:
        recipe = from_file(extra)
        found[recipe.name] = recipe
    return found


def recipe_in(module: ModuleType, where: str) -> Recipe:
    """The one recipe that this module defines; RecipeError, which names the module as `where`, if it defines
    none or several."""
    from outpace.core.contracts import Recipe

    own = [
        value
        for value in vars(module).values()
        if isinstance(value, Recipe) and value.build.__module__ == module.__name__
    ]
    if not own:
        raise RecipeError(
            f"{where} holds no recipe: mark the function that returns Parts with @recipe(paper=..., ...)"
        )
    if len(own) > 1:
        listed = ", ".join(recipe.name for recipe in own)
        raise RecipeError(f"{where} holds {len(own)} recipes ({listed}); a recipe file holds one")
    return own[0]


def described(error: BaseException, path: Path | None = None) -> str:
    """An exception in one line: its type, its message and, if known, the line number in the file `path`."""
    line, trace = getattr(error, "lineno", None), error.__traceback__
    while path is not None and trace is not None and not isinstance(error, SyntaxError):
        if Path(trace.tb_frame.f_code.co_filename) == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    message = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    return f"{type(error).__name__}: {message}" + (f" (line {line})" if line else "")


def place(error: BaseException) -> str:
    """ "FILE, line N" of the innermost line of the traceback in a file of the user's, such as a recipe: one
    that is neither in this package nor in an installed one. "" if there is none."""
    found, trace = "", error.__traceback__
    ours = (FOLDER.parent, Path(sysconfig.get_path("stdlib")))
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_file() and not any(file.is_relative_to(folder) for folder in ours):
            if "site-packages" not in file.parts:
                found = f"{file.name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


class _Package(ModuleType):
    """A module that can be called: `outpace.recipes()` returns the catalogue."""

    def __call__(self) -> list[Entry]:
        return entries()


sys.modules[__name__].__class__ = _Package
