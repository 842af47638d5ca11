"""`outpace chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import Debug, plainly
from outpace.cli.output import summary
from outpace.cli.recipe_options import TARGET, chosen

System = Annotated[str | None, typer.Option(help="The system message.")]


@plainly
@o.grouped
def chat(
    ctx: typer.Context,
    target: o.Target = TARGET,
    method: o.Method = None,
    recipe: o.RecipeFile = None,
    speculative_config: o.Config = None,
    system: System = None,
    *,
    writing: o.Writing,
    loading: o.Loading,
    debug: Debug = False,
) -> None:
    """Talk to a chat model. An empty line or the end of input ends the conversation, Ctrl-C only an answer."""
    used, given = chosen(ctx)
    request = writing.request()
    from outpace.api.prompts import encode

    model = loading.load(target, given)
    hello = [{"role": "user", "content": "hello"}]
    encode(model.tokenizer, hello, model.target.vocab)  # raises without a chat template
    messages = [{"role": "system", "content": system}] if system else []
    while (said := ask()) is not None:
        messages.append({"role": "user", "content": said})
        text = answer(model, messages, used, request | given)
        messages.append({"role": "assistant", "content": text})


def ask(line: Callable[[str], str] = input) -> str | None:
    """The user's next line; None where the conversation is over."""
    try:
        return line("> " if sys.stdin.isatty() else "").strip() or None
    except EOFError:
        return None


def answer(model: Any, messages: list[dict[str, str]], used: Any, request: dict[str, Any]) -> str:
    """Stream one answer; an interrupted one counts as far as it came."""
    from outpace.api import stream

    with stream(model, messages, used, **request) as pieces:
        try:
            for piece in pieces:
                typer.echo(piece, nl=False)
                sys.stdout.flush()
        except KeyboardInterrupt:
            typer.echo("\n(interrupted)", err=True, nl=False)
        typer.echo()
        typer.echo(summary(used.name, pieces.result.statistics), err=True)
        return pieces.result.text
