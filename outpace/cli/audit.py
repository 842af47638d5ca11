"""`outpace audit`: prove the recipes on small models, then look for any deviation on a model of your own."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from outpace.cli.failures import Debug, plainly
from outpace.cli.options import Json
from outpace.cli.output import print_json, print_table

PROMPTS = (
    "def parse(line):\n",
    "Sort these words: pear, apple, fig.\n",
    "12 + 35 =",
    "class Queue:\n",
    "import ",
)


@plainly
def audit(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods of `outpace list`; none: all.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every method that is found.")] = False,
    exhaustive: Annotated[
        bool, typer.Option(help="Larger trees and longer texts: minutes a method.")
    ] = False,
    target: Annotated[str | None, typer.Option(help="Check the methods on this model as well.")] = None,
    draft: Annotated[str | None, typer.Option(help="The draft model for methods that need one.")] = None,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", help="Prompts for your model; repeatable.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each text decoded with your model.")] = 64,
    samples: Annotated[int, typer.Option(help="Sampled texts a method decodes with your model.")] = 40,
    false_alarms: Annotated[
        float, typer.Option(help="How often a right method may fail the sampling test.")
    ] = 1e-6,
    recipe: Annotated[str | None, typer.Option(help="A recipe file of your own to audit too.")] = None,
    dtype: Annotated[str, typer.Option(help="dtype of your model.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Run your model through OpenVINO.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Whether methods keep the target's output distribution: enumerated exactly on small models, tested on yours."""
    from outpace.recipes import find, from_file, get

    if all_ and methods:
        raise ValueError("name methods or give --all, not both")
    recipes = (
        [get(name) for name in methods] if methods else list(find().values()) if not recipe or all_ else []
    )
    if recipe:
        recipes.append(from_file(recipe))
    report: dict[str, Any] = {"proofs": _proofs(recipes, exhaustive), "mistakes": _mistakes()}
    if target:
        from outpace.cli.audit_target import check

        report["target"] = check(
            recipes,
            target,
            draft,
            prompts or list(PROMPTS),
            max_tokens,
            samples,
            false_alarms,
            dtype=dtype,
            threads=threads,
            compile=compile,
        )
    report["passed"] = _passed(report)
    if json:
        print_json(report)
    else:
        _print(report)
    if not report["passed"]:
        raise typer.Exit(1)


def _proofs(recipes: list[Any], exhaustive: bool) -> list[dict[str, Any]]:
    from rich.console import Console
    from rich.progress import track

    from outpace.proof.suite import prove, tables, transformers_models

    models = (tables(), transformers_models(), transformers_models(window=3))
    work = [(recipe, kind) for recipe in recipes for kind in models]
    found = []
    for recipe, kind in track(work, "Enumerating", console=Console(stderr=True), transient=True):
        found += [
            {**asdict(proof), "holds": proof.holds} for proof in prove(recipe, kind, exhaustive=exhaustive)
        ]
    return found


def _mistakes() -> list[dict[str, Any]]:
    from outpace.proof.enumeration import BOUND
    from outpace.proof.suite import prove_wrong

    return [{"name": name, "error": error, "caught": error > BOUND} for name, error in prove_wrong().items()]


def _passed(report: dict[str, Any]) -> bool:
    proven = all(proof["holds"] for proof in report["proofs"])
    caught = all(mistake["caught"] for mistake in report["mistakes"])
    checks = report.get("target", {}).get("methods", [])
    kept = all(check["sampling"]["holds"] and not check["bugs"] for check in checks)
    return proven and caught and kept


def _print(report: dict[str, Any]) -> None:
    rows = []
    for proof in report["proofs"]:
        options = " ".join(f"{name}={value}" for name, value in proof["options"].items()) or "defaults"
        options += f", settings {proof['settings']}" if proof["settings"] else ""
        options += f", {proof['rows']} rows of a prompt" if proof["rows"] > 1 else ""
        options += ", behind a prediction" if proof["predicted"] else ""
        counts = (str(proof["batch"]), str(proof["tokens"]), str(proof["outcomes"]), str(proof["runs"]))
        verdict = "exact" if proof["holds"] else "WRONG"
        rows.append((proof["recipe"], proof["models"], options, *counts, f"{proof['error']:.0e}", verdict))
    columns = ("method", "models", "options", "batch", "tokens", "outcomes", "runs", "error", "")
    print_table(columns, rows, "Output distributions, enumerated in float64 at temperatures 0, 0.7 and 1")
    rows = [
        (m["name"], f"{m['error']:.0e}", "caught" if m["caught"] else "SLIPPED") for m in report["mistakes"]
    ]
    print_table(("known mistake", "error", ""), rows, "Mistakes that must be caught")
    if "target" in report:
        from outpace.cli.audit_target import print_checks

        print_checks(report["target"])
    typer.echo("passed" if report["passed"] else "FAILED")
