"""A typer command that adds the options of the method named by --method, --recipe or similar arguments."""

from __future__ import annotations

import inspect
import json
import re
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from inspect import Parameter, Signature
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from outpace.cli.failures import report_failures
from outpace.cli.options import importing

if TYPE_CHECKING:
    from outpace.core.contracts import Recipe
    from outpace.recipes import RecipeSource

TARGET, DRAFT = "zoo:target", "zoo:draft"
# click's UsageError, the base class of argument errors; typer exports only its subclass BadParameter
UsageError: Any = typer.BadParameter.__mro__[1]
# prefix of the parameter names of method options: avoids clashes with command arguments such as `prompt`
PREFIX = "method_option_"
OTHER_SPELLINGS = {  # option of other tools -> its equivalent here; recipes._spellings has those of methods
    "stream": "no option: one text is always streamed, unless --json or --output is given",
    "interactive": "`outpace chat`",
    "prompt": "the prompt as an argument, or --prompt-file",
    "file": "--prompt-file",
    "system_prompt": "--system of `outpace chat`",
    "target": "the model as an argument, as in outpace serve zoo:target",  # where it is none of the options
}
# option that names a drafter -> a method to suggest if the chosen method does not have this option
DRAFTER_OPTIONS = {"draft": "speculative-sampling", "head": "eagle2"}


class RecipeCommand(TyperCommand):
    """A command that also takes the options of the chosen method.

    `chosen_method` returns the method and its options.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Determine the method from the arguments, then parse its options with those of the command."""
        named = method_arguments(args)
        named.target = self.target_of(ctx, args) or named.target
        asks_for_help = named.help and not (named.method or named.recipe)
        if ctx.resilient_parsing or asks_for_help:
            return super().parse_args(ctx, args)
        report_failures(lambda: self._choose(ctx, named, args))()
        recipe: Recipe | RecipeSource = ctx.meta["options of"]
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if error.__class__.__name__ != "NoSuchOption":
                raise
            raise UsageError(no_such_option(recipe, error), ctx) from None

    def target_of(self, ctx: Any, args: Sequence[str]) -> str | None:
        """The target, if it is given in another way than by --target."""
        return None

    def default_of(self, named: Namespace) -> str:
        """Name of the method if none is named."""
        from outpace.recipes import default_method

        return default_method(named.target or TARGET, has_draft=bool(named.draft or named.drafts))

    def get_params(self, ctx: Any) -> list[Any]:
        """The options of the command and of the chosen method."""
        own = super().get_params(ctx)
        return [*own[:-1], *ctx.meta.get("recipe parameters", ()), *own[-1:]]  # own[-1] is --help

    def invoke(self, ctx: Any) -> Any:
        """Store the method's options for `chosen_method` and call the command function with the others."""
        given = {name: ctx.params.pop(name) for name in list(ctx.params) if name.startswith(PREFIX)}
        options = {name.removeprefix(PREFIX): value for name, value in given.items() if value is not None}
        ctx.meta["options"] = ctx.meta["options"] | options
        return super().invoke(ctx)

    def _choose(self, ctx: Any, named: Namespace, args: Sequence[str]) -> None:
        own = {name for param in super().get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
        refuse_other_spellings(args, own)
        from outpace.recipes import read_options, resolve_recipe

        method, options = find_method(named) or (self.default_of(named), {})
        recipe = read_options(method)
        if recipe is None:
            recipe = method = resolve_recipe(method)
        clash = next((name for name in recipe.options if f"--{flag(name)}" in own), None)
        if clash:
            raise ValueError(
                f"{recipe.name} has an option {clash}, which is an option of the command too: rename it"
            )
        ctx.meta["method"], ctx.meta["options of"], ctx.meta["options"] = method, recipe, options
        ctx.meta["recipe parameters"] = parameters(recipe)


def no_such_option(recipe: Recipe | RecipeSource, error: Any) -> str:
    """The error message for an unknown option, with the options of the chosen method. `error`: the
    NoSuchOption that click raised, which names the option."""
    name = error.option_name.lstrip("-")
    if name in DRAFTER_OPTIONS:
        return (
            f"{recipe.name} has no option --{name}: leave it out, or choose another method, as in "
            f"--method {DRAFTER_OPTIONS[name]}"
        )
    if name == "preset":
        return f"{recipe.name} has no presets: leave --preset out"
    known = ", ".join(f"--{flag(option)}" for option in recipe.options) or "no options"
    return f"{error.format_message().rstrip('.')} ({recipe.name} has {known})"


def chosen_method(ctx: typer.Context) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of the chosen method and its given options, for a command of class `RecipeCommand`. It is
    imported here, after all arguments have been read."""
    with importing():
        from outpace.recipes import resolve_recipe

        return resolve_recipe(ctx.meta["method"]), ctx.meta["options"]


def method_arguments(args: Sequence[str]) -> Namespace:
    """Parse only the arguments that determine the method (--method, --recipe, --target, ...)."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-h", "--help", action="store_true")
    for names in (
        ("--method", "-m"),
        ("--target", "-t"),
        ("--recipe",),
        ("--speculative-config",),
        ("--draft",),
    ):
        parser.add_argument(*names, nargs="?")
    parser.add_argument("--drafts", nargs="?")
    return parser.parse_known_args(list(args))[0]


def find_method(named: Namespace) -> tuple[str | Path, dict[str, Any]] | None:
    """The method named by these arguments, a name or a recipe file, with the options of --speculative-config
    or of the file in which `outpace bench` recommends a method; None if they name none.

    Raises ValueError if more than one of them names a method.
    """
    given = [value for value in (named.recipe, named.method, named.speculative_config) if value]
    if len(given) > 1:
        raise ValueError(
            "give one of --method, --recipe and --speculative-config: each of them names the method"
        )
    if named.recipe:
        return Path(named.recipe), {}
    if named.speculative_config:
        return _from_speculative_config(named.speculative_config)
    if named.method:
        return read_recommendation(Path(named.method[1:])) if named.method[0] == "@" else (named.method, {})
    return None


def _from_speculative_config(config: str) -> tuple[str, dict[str, Any]]:
    with importing():
        from outpace.api import parse_speculative_config

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        name, options = parse_speculative_config(config)
    for warning in caught:
        typer.echo(f"outpace: {warning.message}", err=True)
    return name, options


def read_recommendation(path: Path) -> tuple[str, dict[str, Any]]:
    """Method and options from a recommendation of `outpace bench`: {"method", "options", "draft"}.

    Raises ValueError for a file that cannot be read or names no method.
    """
    from outpace.recipes import DRAFTS, get, read_options

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no JSON, or not even text
        raise ValueError(f"{path} is not JSON: {error}; `outpace bench --recommend` writes it") from error
    if not isinstance(found, dict) or not isinstance(found.get("method"), str):
        raise ValueError(f'{path} names no method: it should hold {{"method": ..., "options": {{...}}}}')
    method, options = str(found["method"]), dict(found.get("options") or {})
    recipe = read_options(method) or get(method)
    name = next((name for name in DRAFTS if name in recipe.options), None)
    if name and found.get("draft"):
        options.setdefault(name, found["draft"])
    return method, options


def refuse_other_spellings(args: Sequence[str], own: set[str]) -> None:
    """Raise ValueError, naming the equivalent, for option names of transformers, vLLM and other tools.

    own: options of the command itself, which are accepted.
    """
    from outpace.recipes import SPELLINGS

    for word in args:
        if word == "--":
            return
        given = word.partition("=")[0]
        name = given.removeprefix("--").replace("-", "_")
        if not given.startswith("--") or given in own:
            continue
        meant = SPELLINGS.get(name)
        if meant in OTHER_SPELLINGS and f"--{meant}" not in own:
            name = meant
        if name in OTHER_SPELLINGS:
            raise ValueError(f"there is no option {given}: use {OTHER_SPELLINGS[name]}")
        if name in SPELLINGS:
            raise ValueError(f"there is no option {given}: use --{flag(SPELLINGS[name])}")


def parameters(recipe: Recipe | RecipeSource) -> list[Any]:
    """The recipe's options as click parameters; typer makes them from the signature of a dummy function."""
    from outpace.recipes import other_names

    names = {option: alias for alias, option in other_names(recipe).items()}
    listed = [
        Parameter(
            PREFIX + option.name,
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_annotation(option, recipe.option_help.get(option.name, ""), names.get(option.name)),
        )
        for option in recipe.options.values()
    ]
    if recipe.presets:
        about = f"Values of several options together: {' or '.join(recipe.presets)} (see `outpace show`)"
        kind = Annotated[str | None, typer.Option("--preset", help=about, metavar="NAME")]
        listed.append(Parameter(PREFIX + "preset", Parameter.KEYWORD_ONLY, default=None, annotation=kind))

    def verb(**given: Any) -> None:
        raise AssertionError("only the parameters of this function are used")

    vars(verb)["__signature__"] = Signature(listed)
    verb.__annotations__ = {each.name: each.annotation for each in listed}
    app = typer.Typer(add_completion=False)
    app.command()(verb)
    return typer.main.get_command(app).params


def _annotation(option: Parameter, meaning: str, alias: str | None) -> Any:
    default = "needed" if option.default is option.empty else f"default {shown(option.default)}"
    about = f"{meaning.rstrip('.')} ({default})".strip()
    if isinstance(option.default, bool):
        return Annotated[
            bool | None, typer.Option(f"--{flag(option.name)}/--no-{flag(option.name)}", help=about)
        ]
    names = [f"--{flag(name)}" for name in (option.name, alias) if name]
    return Annotated[str | None, typer.Option(*names, help=about, metavar=type_name(option.annotation))]


def flag(name: str) -> str:
    """A Python parameter name as an option name without the leading dashes: max_ngram -> max-ngram."""
    return name.replace("_", "-")


def shown(value: Any) -> str:
    """A default value as it would be typed on the command line."""
    if value is None or value == ():
        return "none"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def type_name(annotation: Any) -> str:
    """A type annotation as text, without module names."""
    if isinstance(annotation, str):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(type_name, get_args(annotation)))
    if get_origin(annotation) is Literal:
        return " | ".join(map(repr, get_args(annotation)))
    if annotation is type(None):
        return "None"
    return re.sub(r"\b\w+\.(?=\w)", "", inspect.formatannotation(annotation))
