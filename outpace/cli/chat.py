"""`outpace chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import Debug, plainly
from outpace.cli.generate import check
from outpace.cli.output import summary
from outpace.cli.recipe_options import TARGET, chosen

System = Annotated[str | None, typer.Option(help="The system message.")]


@plainly
def chat(
    ctx: typer.Context,
    target: o.Target = TARGET,
    method: o.Method = None,
    recipe: o.RecipeFile = None,
    speculative_config: o.Config = None,
    system: System = None,
    max_tokens: o.MaxTokens = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    typical_p: o.TypicalP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    logit_bias: o.LogitBias = None,
    bad_word: o.BadWords = None,
    min_tokens: o.MinTokens = None,
    grammar: o.Grammar = None,
    json_schema: o.JsonSchema = None,
    seed: o.Seed = None,
    defaults: o.Defaults = True,
    dtype: o.Dtype = "auto",
    device: o.Device = None,
    revision: o.Revision = None,
    trust_remote_code: o.Trust = False,
    threads: o.Threads = None,
    debug: Debug = False,
) -> None:
    """Talk to a chat model. An empty line or the end of input ends the conversation, Ctrl-C only an answer."""
    used, given = chosen(ctx)
    request: dict[str, Any] = {
        "max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p, "repetition_penalty": repetition_penalty, "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty, "logit_bias": o.biases(logit_bias), "bad_words": bad_word,
        "min_tokens": min_tokens, "grammar": o.contents(grammar), "json_schema": o.contents(json_schema),
        "seed": seed, "defaults": defaults,
    }  # fmt: skip
    check(request)
    from outpace.api.prompts import encode

    model = o.load(
        target,
        given,
        dtype=dtype,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
        threads=threads,
    )
    encode(
        model.tokenizer, [{"role": "user", "content": "hello"}], model.target.vocab
    )  # raises without a chat template
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
