"""The typer app with all subcommands. Their modules import torch and transformers only when called."""

from __future__ import annotations

import typer

from outpace.cli.commands import (
    audit,
    bench,
    chat,
    demo,
    env,
    export,
    generate,
    index,
    list_methods,
    new,
    plan,
    replay,
    serve,
    show,
    train,
    vote,
    zoo,
)
from outpace.cli.recipe_options import RecipeCommand

app = typer.Typer(
    name="outpace",
    help="Make a language model generate faster without changing what it generates.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
app.command("chat", cls=chat.ChatCommand)(chat.chat)
app.command("serve", cls=serve.ServeCommand, context_settings={"max_content_width": serve.HELP_WIDTH})(
    serve.serve
)
app.command("list")(list_methods.list_methods)
app.command("show")(show.show)
app.command("vote", cls=vote.VoteCommand)(vote.vote)
app.command("plan")(plan.plan)
app.command("bench")(bench.bench)
app.command("audit")(audit.audit)
app.command("train")(train.train)
app.command("export")(export.export)
app.command("replay")(replay.replay)
app.add_typer(index.app, name="index")
app.command("new")(new.new)
app.add_typer(zoo.app, name="zoo")
app.command("env")(env.env)
