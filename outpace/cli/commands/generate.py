"""`outpace generate`: generate text from prompts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import INTERRUPTED, Debug, exit_with, report_failures
from outpace.cli.output import print_json, print_status, summary
from outpace.cli.prompt_files import PromptItem, ResultFile, read_prompts
from outpace.cli.recipe_options import TARGET, chosen_method


@report_failures
@o.with_groups
def generate(
    ctx: typer.Context,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT...", help="Texts to continue; - or none: standard input."),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(help='A file with the prompt, or .jsonl with "prompt" or "messages" in each line.'),
    ] = None,
    target: o.Target = TARGET,
    method: o.Method = None,
    recipe: o.RecipeFile = None,
    speculative_config: o.SpeculativeConfig = None,
    exact: o.Exact = False,
    *,
    generation: o.GenerationOptions,
    n: Annotated[int, typer.Option("--n", help="Samples of each prompt, each with a seed of its own.")] = 1,
    logprobs: Annotated[
        int | None,
        typer.Option(help="In JSON: log probabilities of each token and of this many most probable ones."),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue after the end-of-text token.")
    ] = False,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Take each prompt as a user's message, by the model's chat template."),
    ] = False,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before the text.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Number of texts decoded together.")] = 8,
    loading: o.LoadingOptions,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write results into this file: .jsonl, .json, or text."),
    ] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: Debug = False,
) -> None:
    """Generate text from prompts. The method's options, such as --draft MODEL, --head HEAD or --depth 4, are
    listed by `generate --method METHOD --help`."""
    items = read_prompts(prompt, prompt_file, chat=chat)
    if logprobs is not None and not json and (output is None or output.suffix not in (".json", ".jsonl")):
        raise ValueError("--logprobs are written as JSON: add --json, or --output FILE.json")
    used, given = chosen_method(ctx)
    request = (
        generation.request()
        | given
        | {"n": n, "logprobs": logprobs, "ignore_eos": ignore_eos, "exact": exact}
    )
    written = ResultFile(output) if output else None
    o.leave_cpus(loading.threads)
    model = loading.load(target)
    if len(items) * n == 1 and not json and written is None:
        generate_one(model, items[0], used, request, echo=echo, quiet=quiet)
    else:
        generate_all(
            model, items, used, request, batch=batch, json=json, echo=echo, quiet=quiet, written=written
        )


def generate_all(
    model: Any,
    items: list[PromptItem],
    used: Any,
    request: dict[str, Any],
    *,
    batch: int,
    json: bool,
    echo: bool,
    quiet: bool,
    written: ResultFile | None,
) -> None:
    """Generate the texts of all prompts in batches; finished ones are printed even if a later one fails."""
    from outpace.api import generate_each
    from outpace.console import progress

    found: list[dict[str, Any]] = []
    num_tokens, samples = 0, request["n"]
    try:
        with progress(len(items) * samples) as advance:

            def on_piece(piece: Any) -> None:
                nonlocal num_tokens
                num_tokens += len(piece.tokens)
                advance(f"{num_tokens} tokens", 0)

            prompts = [item.prompt for item in items]
            results = generate_each(model, prompts, used, batch=batch, on_piece=on_piece, **request)
            for index, result in enumerate(results):
                advance(f"{num_tokens} tokens", 1)
                item = items[index // samples]
                as_dict = {"prompt": item.prompt, "method": used.name, **item.extra}
                found.append(as_dict | result.as_dict(model.tokenizer))
                if written is not None:
                    written.add(found[-1])
                elif not json:
                    print_result(index, len(items), samples, item, result.text, echo=echo)
                if not json and not quiet:
                    print_status(summary(used.name, result))
    finally:
        if json:
            print_json({"results": found})


def print_result(
    index: int, num_prompts: int, samples: int, item: PromptItem, text: str, *, echo: bool
) -> None:
    """Print one text; if there are several, below a header with the numbers of its prompt and sample."""
    which = [f"prompt {index // samples + 1} of {num_prompts}"] if num_prompts > 1 else []
    which += [f"sample {index % samples + 1} of {samples}"] if samples > 1 else []
    typer.echo(f"--- {', '.join(which)}: {item.label}" if which else "", nl=bool(which))
    typer.echo(f"{item.prompt if echo and isinstance(item.prompt, str) else ''}{text}\n")


def generate_one(
    model: Any, item: PromptItem, used: Any, request: dict[str, Any], *, echo: bool, quiet: bool
) -> None:
    """Print one text as it is generated; Ctrl-C keeps the printed part and exits with code 130."""
    from outpace.api import stream

    pieces = stream(model, item.prompt, used, **request)
    if echo and isinstance(item.prompt, str):
        typer.echo(item.prompt, nl=False)
    try:
        for piece in pieces:
            typer.echo(piece, nl=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        typer.echo()
        tokens = pieces.result.statistics.num_tokens
        exit_with(f"interrupted after {tokens} tokens; the text above is incomplete", INTERRUPTED)
    typer.echo()
    if not quiet:
        print_status(summary(used.name, pieces.result))
