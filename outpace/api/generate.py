"""Generate text from prompts: all at once, batch by batch, or as a stream."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from outpace.api.call import Call, prepare
from outpace.api.row_output import Result
from outpace.api.stream import Stream
from outpace.core.contracts import Parts
from outpace.core.sampling_params import PARAMETERS

P = ParamSpec("P")
R = TypeVar("R")


def parameters_of(source: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Decorator: gives a `*args, **keywords` wrapper the signature and the `Args:` section of `source`.

    Editors, type checkers, `help` and `inspect.signature` then show the parameters of `source`. The section
    describes the sampling parameters in the place of its line "...".
    """
    settings = "".join(f"    {each.name}: {each.help}\n" for each in PARAMETERS if each.argument is not None)

    def mark(function: Callable[..., R]) -> Callable[P, R]:
        signature = inspect.signature(source)
        returned = inspect.signature(function).return_annotation
        vars(function)["__signature__"] = signature.replace(return_annotation=returned)
        _, args, details = (inspect.getdoc(source) or "").partition("Args:")
        details = re.sub(r"    \.\.\.: .*\n", lambda _: settings, details)
        function.__doc__ = f"{inspect.getdoc(function)}\n\n{args}{details}"
        return function

    return mark


@parameters_of(prepare)
def generate(*args: Any, **keywords: Any) -> list[Result]:
    """Generate text for one or several prompts: one result per sample, in the order of the prompts."""
    return list(generate_each(*args, **keywords))


@parameters_of(prepare)
def generate_each(*args: Any, **keywords: Any) -> Iterator[Result]:
    """Iterator over the results of `generate`; each is yielded as soon as it and those before it are
    complete."""
    call = prepare(*args, **keywords)  # the arguments are checked now, not in the first iteration
    return _results(call, call.parts())


def _results(call: Call, parts: Parts) -> Iterator[Result]:
    decoding, given = call.decode(parts), 0
    for _ in decoding:
        for row in range(given, decoding.finished):
            yield decoding.result(row)
            given = row + 1


@parameters_of(prepare)
def stream(*args: Any, **keywords: Any) -> Stream:
    """Generate text for one prompt and yield it piece by piece; ValueError for several prompts or samples."""
    call = prepare(*args, **keywords)
    if len(call.prompts) != 1:
        raise ValueError(
            f"stream takes one prompt and one sample, not {len(call.prompts)}; generate takes several"
        )
    return Stream(call.decode())
