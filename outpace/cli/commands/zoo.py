"""`outpace zoo`: the small models and draft heads in the package."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from outpace.cli.failures import Debug, report_failures
from outpace.cli.options import Json
from outpace.cli.output import print_json, print_table

app = typer.Typer(help="The small models and draft heads in the package.", no_args_is_help=True)
COLUMNS = (
    "model",
    "parameters",
    "vocabulary",
    "tokens seen",
    "held-out code loss (nats per token)",
    "trained on",
)
HEAD_COLUMNS = (
    "draft head",
    "parameters",
    "acceptance length (greedy chain, held-out text)",
    "acceptance at temperature 1",
    "training tokens",
    "steps",
)


@app.command("list")
@report_failures
def list_(json: Json = False, debug: Debug = False) -> None:
    """List the models with parameters, vocabulary, training tokens and held-out loss, and the draft heads
    with their agreement with zoo:target."""
    from outpace import zoo

    models = [
        {"name": f"zoo:{name}", "folder": str(zoo.path(name)), "card": zoo.card(name)} for name in zoo.names()
    ]
    heads = [
        {"name": f"zoo:{name}", "folder": str(zoo.path(name)), "card": zoo.card(name)}
        for name in zoo.head_names()
    ]
    if json:
        print_json({"models": models, "heads": heads})
        return
    print_table(COLUMNS, [table_row(model["name"], model["card"]) for model in models])
    if heads:
        print_table(HEAD_COLUMNS, [head_row(head["name"], head["card"]) for head in heads])


@app.command("show")
@report_failures
def show(name: Annotated[str, typer.Argument(help="zoo:target, or target.")], debug: Debug = False) -> None:
    """Show a model's or draft head's card: training data, training run and measurements."""
    from outpace import zoo

    print_json(zoo.card(name) | {"folder": str(zoo.path(name))})


def table_row(name: str, card: dict[str, Any]) -> tuple[str, ...]:
    """A model as a table row with the columns COLUMNS; "-" where its card lacks the field."""
    parameters, tokens, loss = card.get("parameters"), card.get("tokens_seen"), card.get("held_out_loss")
    return (
        name,
        f"{parameters:,}" if parameters else "-",
        str(card.get("vocabulary", "-")),
        f"{tokens:,}" if tokens else "-",
        f"{loss['code']:.2f}" if loss else "-",
        card.get("device", "-"),
    )


def head_row(name: str, card: dict[str, Any]) -> tuple[str, ...]:
    """A draft head as a table row with the columns HEAD_COLUMNS."""
    last = card["evaluations"][-1]
    return (
        name,
        f"{card['parameters']:,}",
        f"{last['acceptance_length']:.2f}",
        f"{last['acceptance']:.2f}",
        f"{card['tokens']:,}",
        f"{last['step']:,}",
    )
