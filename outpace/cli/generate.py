"""`outpace generate`: write what follows a prompt."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import INTERRUPTED, Debug, plainly, stop
from outpace.cli.output import print_json, summary
from outpace.cli.recipe_options import TARGET, chosen

Prompts = Annotated[
    list[str] | None,
    typer.Argument(metavar="PROMPT...", help="The text to go on from; - or none: standard input."),
]
Batch = Annotated[int, typer.Option(help="Prompts decoded together.")]


@plainly
@o.grouped
def generate(
    ctx: typer.Context,
    prompt: Prompts = None,
    target: o.Target = TARGET,
    method: o.Method = None,
    recipe: o.RecipeFile = None,
    speculative_config: o.Config = None,
    *,
    writing: o.Writing,
    n: Annotated[int, typer.Option("--n", help="Samples of each prompt, each with a seed of its own.")] = 1,
    logprobs: Annotated[
        int | None,
        typer.Option(help="With --json: log probabilities of each token and so many likeliest ones."),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Write on after the end-of-text token.")
    ] = False,
    batch: Batch = 8,
    loading: o.Loading,
    json: o.Json = False,
    debug: Debug = False,
) -> None:
    """Write what follows a prompt. Options of the method are given by name: --depth 4."""
    used, given = chosen(ctx)
    prompts = read(prompt)
    if not all(prompts):
        raise ValueError("the prompt is empty: give it some text")
    request = writing.request() | {"n": n, "logprobs": logprobs, "ignore_eos": ignore_eos}
    model = loading.load(target, given)
    if logprobs is not None and not json:
        raise ValueError("--logprobs are written as JSON: add --json")
    if len(prompts) * n == 1 and not json:
        write(model, prompts[0], used, request | given)
        return
    write_all(model, prompts, used, request | given, batch=batch, json=json)


def write_all(
    model: Any, prompts: list[str], used: Any, request: dict[str, Any], *, batch: int, json: bool
) -> None:
    """All texts, batch by batch; what is there when it is interrupted or fails is not lost."""
    from outpace.api import generate_each
    from outpace.console import progress

    found: list[dict[str, Any]] = []
    written = 0
    try:
        with progress(len(prompts) * request["n"]) as tell:

            def after(piece: Any) -> None:
                nonlocal written
                written += len(piece.tokens)
                tell(f"{written} tokens", 0)

            results = generate_each(model, prompts, used, batch=batch, after=after, **request)
            texts = [text for text in prompts for _ in range(request["n"])]
            for text, result in zip(texts, results, strict=True):
                tell(f"{written} tokens", 1)
                found.append({"prompt": text, "method": used.name} | result.as_dict())
                if not json:
                    typer.echo(f"{text}{result.text}\n")
                    typer.echo(summary(used.name, result.statistics), err=True)
    finally:
        if json:
            print_json({"results": found})


def read(prompts: list[str] | None) -> list[str]:
    """The prompts, from the arguments or from standard input."""
    if not prompts and sys.stdin.isatty():
        raise ValueError('there is no prompt: give one, as in outpace generate "def add(a, b):"')
    return [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts or ["-"]]


def write(model: Any, prompt: str, used: Any, request: dict[str, Any]) -> None:
    """Stream one text to the terminal; what was written stays when it is interrupted."""
    from outpace.api import stream

    stream_ = stream(model, prompt, used, **request)
    typer.echo(prompt, nl=False)
    try:
        for piece in stream_:
            typer.echo(piece, nl=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        typer.echo()
        tokens = stream_.result.statistics.num_tokens
        stop(f"interrupted after {tokens} tokens; what is above is what there was", INTERRUPTED)
    typer.echo()
    typer.echo(summary(used.name, stream_.result.statistics), err=True)
