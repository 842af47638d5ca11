"""`outpace replay`: acceptance length of text-based drafters on recorded outputs, without running a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outpace.cli.failures import Debug, report_failures
from outpace.cli.options import Json
from outpace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from outpace.bench.measure.replay import ReplayResult

METHODS = "prompt-lookup,suffix-decoding,sam-decoding"
COLUMNS = (
    "method",
    "tokens a step",
    "first half",
    "second half",
    "drafted a step",
    "of them kept",
    "steps with a draft",
    "steps",
    "ms drafting a step",
)


@report_failures
def replay(
    source: Annotated[
        list[Path],
        typer.Option(
            "--from", help='.jsonl with "prompt" and "text" or their tokens, or what generate --json printed.'
        ),
    ],
    methods: Annotated[
        str, typer.Option(help="Separated by commas; options as in prompt-lookup:depth=8.")
    ] = METHODS,
    tokenizer: Annotated[str, typer.Option(help="The model that wrote the texts.")] = "zoo:target",
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="max_tokens of the requests whose texts ended early, at a stop token."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure on recorded outputs, without running a model, how many tokens a step of methods that draft from
    text would be accepted."""
    for path in source:
        if not path.is_file():
            raise ValueError(
                f"there is no file {path}: give --from .jsonl files or what generate --json printed"
            )

    from outpace.api.settings import end_tokens
    from outpace.bench.measure import replay as bench
    from outpace.bench.measure.line_up import find
    from outpace.bench.measure.provenance import provenance
    from outpace.console import progress
    from outpace.models.checkpoint import load_tokenizer
    from outpace.models.names import resolve
    from outpace.recipes import parse_methods

    named = [(method, find(method.name)) for method in parse_methods(methods)]
    words = load_tokenizer(resolve(tokenizer))
    vocab = 1 + max(words.get_vocab().values())

    def encode_prompt(text: str) -> list[int]:
        return words(text, verbose=False)["input_ids"]

    def encode(text: str) -> list[int]:
        return words(text, add_special_tokens=False, verbose=False)["input_ids"]

    texts = [text for path in source for text in bench.read(path, encode_prompt, encode, vocab)]
    if not texts:
        raise ValueError("there are no texts in the files of --from: give others")
    parts = [bench.build(recipe, dict(method.options), vocab, words) for method, recipe in named]
    stop = end_tokens(defaults(resolve(tokenizer)), words)
    found: list[ReplayResult] = []
    with progress(len(named) * len(texts)) as advance:
        for (method, _), each in zip(named, parts, strict=True):

            def after(label: str = method.label) -> None:
                advance(label, 1)

            found.append(
                bench.replay(method.label, each, texts, stop=stop, max_tokens=max_tokens, on_text=after)
            )
    results = [each.figures() for each in found]
    if json:
        settings = {"from": [str(path) for path in source], "tokenizer": tokenizer, "texts": len(texts)}
        print_json(
            {
                "schema": "outpace-replay/1",
                "provenance": provenance("cpu"),
                "settings": settings,
                "results": results,
            }
        )
    else:
        size = sum(len(text.tokens) for text in texts)
        print_table(COLUMNS, [cells(row) for row in results], f"{len(texts)} texts, {size} tokens")


def defaults(name: str) -> Any:
    """The checkpoint's generation_config.json as a transformers GenerationConfig; None if there is none."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(name, local_files_only=True)
    except OSError:
        return None


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    rate = row["acceptance_rate"]
    return (
        row["method"],
        f"{row['mean_acceptance_length']:.2f}",
        *([f"{half:.2f}" for half in row["mean_acceptance_length_of_halves"]] or ["-", "-"]),
        f"{row['drafted_per_step']:.1f}",
        "-" if rate is None else f"{100 * rate:.0f} %",
        f"{100 * row['drafting_steps']:.0f} %",
        str(row["steps"]),
        f"{row['milliseconds_drafting_per_step']:.3f}",
    )
