"""Exceptions as one-sentence messages and exit codes: 2 for bad input, 1 for a failed run, 130 for Ctrl-C."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.metadata import PackageNotFoundError, requires
from typing import Annotated, Any, ParamSpec

import typer

P = ParamSpec("P")
EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")]


def report_failures(verb: Callable[P, None]) -> Callable[P, None]:
    """Decorator of a subcommand: print an exception as one sentence and exit; with --debug raise it."""

    @wraps(verb)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with warnings_in_one_line():
                verb(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise  # handled by typer, which exits silently on a closed pipe (`outpace list | head`)
        except KeyboardInterrupt:
            exit_with("interrupted", INTERRUPTED)
        except Exception as error:
            if kwargs.get("debug"):
                raise
            exit_with(*failure_message(error))

    return reporting


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Context manager: warnings for the user are one line on stderr, without the code they come from."""
    usual = warnings.formatwarning

    def one_line(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> str:
        if category is not UserWarning:  # such as a library's DeprecationWarning
            return usual(message, category, *place, **rest)
        return f"outpace: {message}\n"

    warnings.formatwarning = one_line
    try:
        yield
    finally:
        warnings.formatwarning = usual


def exit_with(message: str, code: int) -> None:
    """Print the message on stderr and exit with this code."""
    typer.echo(f"outpace: {message}", err=True)
    raise typer.Exit(code)


def failure_message(error: Exception) -> tuple[str, int]:
    """The one-sentence message for an exception, and the exit code."""
    text = " ".join(str(error).split()) or type(error).__name__
    if out_of_memory(error, text):
        return (
            "the machine ran out of memory: ask for fewer --max-tokens or a smaller --batch, "
            "load with --dtype bfloat16, or use a smaller model",
            FAILED,
        )
    if isinstance(error, FloatingPointError):
        return text, FAILED
    if isinstance(error, ValueError):
        return text, BAD_INPUT
    if isinstance(error, ModuleNotFoundError):
        return missing_package(error), FAILED
    if isinstance(error, OSError):
        return text, FAILED
    from outpace.recipes import place

    where = f"{place(error)}; --debug shows more" if place(error) else "--debug shows where"
    return f"the run failed with {type(error).__name__}: {text} ({where})", FAILED


def missing_package(error: ModuleNotFoundError) -> str:
    """The message for a missing package, with the pip command (of the extra, if one contains it)."""
    module = (error.name or "").partition(".")[0]
    try:
        wanted = requires("outpace") or []
    except PackageNotFoundError:
        wanted = []
    for line in wanted:
        package, extra = re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0], EXTRA.search(line)
        if extra and package.replace("-", "_").startswith(module):
            return f"{module} is not installed: pip install 'outpace[{extra[1]}]'"
    return f"{module} is not installed: pip install {module}"


def out_of_memory(error: Exception, text: str) -> bool:
    """Whether an exception means that torch or Python ran out of memory; `text` is its message."""
    # torch raises OutOfMemoryError for a GPU and a plain RuntimeError for the CPU
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text))
    )
