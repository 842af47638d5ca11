"""The verbs, put together without importing what they use."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import typer

from outpace.cli import chat, demo, env, generate, list_, new, show, zoo
from outpace.cli.recipe_options import RecipeCommand

app = typer.Typer(
    name="outpace",
    help="Make a language model write faster without changing what it says.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
OTHERS = {  # verbs whose own files are imported only when they are called: they read their own arguments
    "bench": "Time methods side by side on your model, prompts and machine.",
    "verifiers": "Compare what the exact verification rules keep of the same drafts.",
    "replay": "What methods that draft from text would have kept of recorded texts, with no model.",
    "index": "Build indexes of text for methods that draft from it, and show what is in one.",
    "audit": "Check that a method keeps its promise, by exact enumeration.",
}


@app.callback(invoke_without_command=True)
def options(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    if version:
        from outpace import __version__

        typer.echo(f"outpace {__version__}")
        raise typer.Exit()
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


app.command("demo")(demo.demo)
app.command("generate", cls=RecipeCommand)(generate.generate)
app.command("chat", cls=RecipeCommand)(chat.chat)
app.command("list")(list_.list_)
app.command("show")(show.show)
app.command("new")(new.new)
app.add_typer(zoo.app, name="zoo")
app.command("env")(env.env)


def forward(verb: str) -> None:
    """Mount a verb that parses its own arguments."""

    def call(ctx: typer.Context) -> None:
        module = import_module(f"outpace.cli.{verb}")
        inner = getattr(module, "app", None)
        if not isinstance(inner, typer.Typer):
            inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
            inner.command()(getattr(module, verb))
        typer.main.get_command(inner)(args=ctx.args, prog_name=f"outpace {verb}", standalone_mode=True)

    app.command(verb, help=OTHERS[verb], context_settings=FORWARD, add_help_option=False)(call)


for each in OTHERS:
    if find_spec(f"outpace.cli.{each}"):
        forward(each)
