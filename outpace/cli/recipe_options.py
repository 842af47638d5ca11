"""A command that takes, besides its own options, those of the recipe it is told to use."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from outpace.cli.failures import plainly

if TYPE_CHECKING:
    from outpace.core.contracts import Recipe

TARGET, DRAFT = "zoo:target", "zoo:draft"
WITH_DRAFT, WITHOUT_DRAFT = "speculative-sampling", "prompt-lookup"
WORDS = ("true", "false", "yes", "no", "on", "off")


class RecipeCommand(TyperCommand):
    """Takes `--depth 4` out of the arguments where the recipe has an option `depth`; `chosen` hands them on."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes = {
            name: not getattr(param, "is_flag", False) for param in self.params for name in _names(param)
        }
        if "--help" in args and not _asked(args, "--method", "-m", "--recipe"):
            return super().parse_args(ctx, args)
        rest: list[str] = []
        plainly(lambda: rest.extend(self._split(ctx, args, takes)))()
        if "--help" in rest:
            self.epilog = described(ctx.meta["recipe"])
        return super().parse_args(ctx, rest)

    def _split(self, ctx: Any, args: list[str], takes: dict[str, bool]) -> list[str]:
        recipe, options = named(args)
        rest, given = split(args, takes, switches(recipe))
        refuse_unknown(recipe, given, list(takes))
        ctx.meta["recipe"], ctx.meta["options"] = recipe, options | given
        return rest


def refuse_unknown(recipe: Recipe, given: Iterable[str], own: Sequence[str]) -> None:
    """Raise for an option that neither the verb nor the recipe has."""
    theirs = [f"--{name.replace('_', '-')}" for name in recipe.options]
    for name in (f"--{name.replace('_', '-')}" for name in given):
        if name not in theirs:
            near = get_close_matches(name, [*theirs, *own], n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(theirs) or 'none of its own'}"
            raise ValueError(f"{recipe.name} has no option {name}; {hint}")


def chosen(ctx: typer.Context) -> tuple[Recipe, dict[str, Any]]:
    """The recipe that was named, and the options that were given for it."""
    return ctx.meta["recipe"], ctx.meta["options"]


def named(args: Sequence[str]) -> tuple[Recipe, dict[str, Any]]:
    """The recipe that these arguments name, with the options of its file or of vLLM's JSON."""
    draft, target = _asked(args, "--draft", "--drafts"), _asked(args, "--target", "-t") or TARGET
    recipe, options = _named(args, WITH_DRAFT if draft or target == TARGET else WITHOUT_DRAFT)
    if draft is None:
        from outpace.models.names import usual_draft
        from outpace.recipes import wants_cross_vocabulary

        wanted = [name for name in ("draft", "drafts") if name in recipe.options]
        usual = {
            name: usual_draft(target, cross_vocabulary=wants_cross_vocabulary(recipe, name))
            for name in wanted
        }
        options = {name: model for name, model in usual.items() if model} | options
    return recipe, options


def _named(args: Sequence[str], usual: str) -> tuple[Recipe, dict[str, Any]]:
    from outpace.recipes import from_file, get

    path, method = _asked(args, "--recipe"), _asked(args, "--method", "-m")
    config = _asked(args, "--speculative-config")
    if sum(value is not None for value in (path, method, config)) > 1:
        raise ValueError(
            "give one of --method, --recipe and --speculative-config: each of them names the method"
        )
    if path:
        return from_file(path), {}
    if config:
        from outpace.api import translate

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            name, options = translate(config)
        for warning in told:
            typer.echo(f"outpace: {warning.message}", err=True)
        return get(name), options
    if method and method.startswith("@"):
        return recommended(Path(method[1:]))
    return get(method or usual), {}


def recommended(path: Path) -> tuple[Recipe, dict[str, Any]]:
    """A method as `outpace bench` recommends it: {"method": ..., "options": {...}, "draft": ...}."""
    from outpace.recipes import get

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("method"), str):
        raise ValueError(f'{path} names no method: it should hold {{"method": ..., "options": {{...}}}}')
    recipe, options = get(found["method"]), dict(found.get("options") or {})
    name = next((name for name in ("draft", "drafts") if name in recipe.options), None)
    if name and found.get("draft"):
        options.setdefault(name, found["draft"])
    return recipe, options


def switches(recipe: Recipe) -> set[str]:
    """The options that are on or off, and so need no value."""
    return {
        name.replace("_", "-") for name, option in recipe.options.items() if isinstance(option.default, bool)
    }


def split(args: Sequence[str], takes: dict[str, bool], on_off: set[str]) -> tuple[list[str], dict[str, Any]]:
    """The command's own arguments, and the rest as options of the recipe."""
    rest: list[str] = []
    given: dict[str, Any] = {}
    words = list(args)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*rest, word, *words], given
        if not word.startswith("--") or name in takes or name == "--help":
            rest.append(word)
            if takes.get(word) and words:
                rest.append(words.pop(0))
            continue
        name = name[2:]
        if equals:
            given[name] = value
        elif name.removeprefix("no-") in on_off and not (words and words[0].lower() in WORDS):
            given[name.removeprefix("no-")] = not (name.startswith("no-") and name not in on_off)
        elif not words:
            raise ValueError(f"--{name} needs a value")
        else:
            given[name] = words.pop(0)
    return rest, given


def described(recipe: Recipe) -> str:
    """The recipe's options, for --help."""
    lines = [f"Options of {recipe.name}:"]
    for name, option in recipe.options.items():
        default = "needed" if option.default is option.empty else f"default {shown(option.default)}"
        lines.append(f"--{name.replace('_', '-')} ({default})")
    return "\n\n".join(lines) if len(lines) > 1 else f"{recipe.name} has no options of its own."


def shown(value: Any) -> str:
    """A default as one would type it."""
    if value is None or value == ():
        return "none"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _asked(args: Sequence[str], *names: str) -> str | None:
    for index, word in enumerate(args):
        name, equals, value = word.partition("=")
        if word == "--":
            return None
        if name in names:
            return value if equals else args[index + 1] if index + 1 < len(args) else ""
    return None


def _names(param: Any) -> list[str]:
    return [name for name in (*param.opts, *param.secondary_opts) if name.startswith("-")]
