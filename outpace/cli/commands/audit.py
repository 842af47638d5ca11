"""`outpace audit`: check that methods keep the target's output distribution.

Enumerates all outputs on small table models; optionally tests greedy and sampled outputs of a user's model.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Annotated, Any

import typer

from outpace.cli.commands.audit_options import check_options
from outpace.cli.failures import INTERRUPTED, Debug, report_failures
from outpace.cli.options import (
    AllowPickle,
    DraftWeights,
    Json,
    KvCache,
    Revision,
    Trust,
    Weights,
    importing,
)
from outpace.cli.output import print_json, print_status, print_table
from outpace.models.threads import num_cpus

PROMPTS = (
    "def parse(line):\n",
    "Sort these words: pear, apple, fig.\n",
    "12 + 35 =",
    "class Queue:\n",
    "import ",
    "def area(width, height):\n    return width * height\n\n\n" * 6 + "def volume(",
)
MISTAKES = "planted mistakes"


@report_failures
def audit(
    ctx: typer.Context,
    methods: Annotated[list[str] | None, typer.Argument(help="Methods of `outpace list`; none: all.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All methods.")] = False,
    exhaustive: Annotated[
        bool, typer.Option(help="Larger trees and longer texts: takes minutes per method.")
    ] = False,
    target: Annotated[str | None, typer.Option(help="Test the methods on this model as well.")] = None,
    draft: Annotated[str | None, typer.Option(help="The draft model for methods that need one.")] = None,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", help="Prompts for your model; repeatable.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each text decoded with your model.")] = 96,
    samples: Annotated[int, typer.Option(help="Sampled texts a method decodes with your model.")] = 64,
    false_alarms: Annotated[
        float,
        typer.Option(help="Probability that the tests on your model fail although all methods are correct."),
    ] = 0.01,
    recipe: Annotated[str | None, typer.Option(help="A recipe file of your own to audit too.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Audit this OpenAI-compatible server instead.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The server's name of its model.")] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="URL|MODEL", help="The same model without speculation: a folder, a name, or a server."
        ),
    ] = None,
    max_requests: Annotated[int, typer.Option(min=20, help="Most requests to the server.")] = 300,
    max_seconds: Annotated[float, typer.Option(min=1, help="Longest time of the server's audit.")] = 600,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Send the requests to a server on another machine.")
    ] = False,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="OPENAI_API_KEY", show_envvar=False, help="The servers' key; also OPENAI_API_KEY."
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="dtype of your model; with --endpoint, in which the server computes.")
    ] = "auto",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    allow_pickle: AllowPickle = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of parallel processes; default: one per CPU.")
    ] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Run your model through OpenVINO.")] = False,
    weights: Weights = None,
    draft_weights: DraftWeights = None,
    kv_cache: KvCache = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check that methods keep the target's output distribution: all outputs enumerated on small models,
    statistical tests on your model. With --endpoint: check that a server with speculative decoding does."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    check_options(given, endpoint, model, reference)
    if endpoint is not None and model is not None and reference is not None:
        with importing():
            from outpace.cli.commands.audit_endpoint import audit_endpoint

        audit_endpoint(
            endpoint,
            model,
            reference,
            prompts=prompts,
            max_tokens=max_tokens,
            max_requests=max_requests,
            max_seconds=max_seconds,
            false_alarms=false_alarms,
            allow_remote=allow_remote,
            api_key=api_key,
            json=json,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
            threads=threads,
        )
        return
    from outpace.recipes import find, from_file, get, read_options

    if all_ and methods:
        raise ValueError("name methods or give --all, not both")
    for name in methods or ():
        read_options(name)  # an unknown name is refused before anything is imported
    with importing():
        from outpace.cli.commands.audit_target import check, check_size

    check_size(samples, max_tokens, false_alarms)  # before proofs that take minutes
    recipes = (
        [get(name) for name in methods] if methods else list(find().values()) if not recipe or all_ else []
    )
    # worker processes import recipes again, so they get names or file paths
    sources = [each.name for each in recipes]
    if recipe:
        recipes.append(from_file(recipe))
        sources.append(recipe)
    report: dict[str, Any] = {"proofs": [], "mistakes": []}
    try:
        for kind, found in _results(sources, exhaustive, processes or num_cpus(), debug):
            report["mistakes" if kind == MISTAKES else "proofs"] += found
            print_status(_progress(kind, found))
        report["proofs"].sort(key=lambda proof: sources.index(proof["source"]))
        if target:
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
                weights=weights,
                draft_weights=draft_weights,
                kv_cache=kv_cache,
                revision=revision,
                trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle,
            )
    except KeyboardInterrupt:
        report["interrupted"] = True
    report["passed"] = _passed(report)
    if json:
        print_json(report)
    else:
        _print(report)
    if report.get("interrupted"):
        raise typer.Exit(INTERRUPTED)
    if not report["passed"]:
        raise typer.Exit(1)


def _results(
    sources: list[str], exhaustive: bool, processes: int, debug: bool
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield, as they finish, (source, proofs of one method on one kind of models) and (MISTAKES, reports of
    the planted mistakes), in a process pool if `processes` > 1."""
    from outpace.proof.suite import PLANS

    work = [(source, kind, exhaustive, debug) for source in sources for kind in PLANS]
    if processes == 1:
        yield from ((each[0], proofs(*each)) for each in work)
        yield MISTAKES, planted_mistakes()
        return
    needed = min(processes, len(work) + 1)
    with ProcessPoolExecutor(needed, multiprocessing.get_context("spawn"), one_thread) as pool:
        try:
            names = {pool.submit(planted_mistakes): MISTAKES}
            names |= {pool.submit(proofs, *each): each[0] for each in work}
            for done in as_completed(names):
                yield names[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def one_thread() -> None:
    """Initializer of a pool process: torch uses one thread, because the processes share the CPUs."""
    import torch

    torch.set_num_threads(1)


def proofs(source: str, kind: str, exhaustive: bool, debug: bool = False) -> list[dict[str, Any]]:
    """Reports of the proofs of a method on one kind of models. An exception is the fault of a last one, so
    that the other methods are audited; with `debug` it is raised.

    source: name or recipe file of the method; kind: a key of `outpace.proof.suite.PLANS`.
    """
    from outpace.proof.suite import PLANS, failed, prove
    from outpace.recipes import resolve_recipe

    plan, recipe, found = PLANS[kind], resolve_recipe(source), []
    models = plan.models()
    try:
        for proof in prove(recipe, models, plan, exhaustive=exhaustive):
            found.append(proof)
    except Exception as error:
        if debug:
            raise
        found.append(failed(recipe, models, error))
    return [{"source": source, **proof.report()} for proof in found]


def planted_mistakes() -> list[dict[str, Any]]:
    """For each mutant (a deliberately wrong part): the error of its output distribution, and whether that is
    above the threshold CAUGHT."""
    from outpace.proof.suite import CAUGHT, mistakes

    found = {name: error() for name, error in mistakes().items()}
    return [{"name": name, "error": error, "caught": error > CAUGHT} for name, error in found.items()]


def _progress(kind: str, found: list[dict[str, Any]]) -> str:
    if kind == MISTAKES:
        return f"{kind}: {sum(each['caught'] for each in found)} of {len(found)} caught"
    failed = [proof["verdict"] for proof in found if not proof["holds"]]
    seconds = sum(proof["seconds"] for proof in found)
    verdict = failed[0] if failed else found[0]["verdict"]
    return f"{found[0]['recipe']}, {found[0]['models']}: {len(found)} proofs in {seconds:.0f} s, {verdict}"


def _passed(report: dict[str, Any]) -> bool:
    proven = all(proof["holds"] for proof in report["proofs"])
    caught = all(mistake["caught"] for mistake in report["mistakes"])
    checks = report.get("target", {}).get("methods", [])
    return proven and caught and all(check["holds"] for check in checks) and not report.get("interrupted")


def _print(report: dict[str, Any]) -> None:
    rows = []
    for proof in report["proofs"]:
        options = " ".join(f"{name}={value}" for name, value in proof["options"].items()) or "defaults"
        options += f", settings {proof['settings']}" if proof["settings"] else ""
        options += f", {proof['rows']} rows of a prompt" if proof["rows"] > 1 else ""
        options += ", with a predicted output" if proof["predicted"] else ""
        options += ", same counts as the defaults" if proof["same_as_default"] else ""
        numbers = ("batch", "tokens", "outcomes", "runs", "drafted", "accepted", "deepest")
        error = "-" if proof["error"] is None else f"{proof['error']:.0e}"
        rows.append(
            (
                proof["recipe"],
                proof["models"],
                options,
                *(str(proof[n]) for n in numbers),
                error,
                proof["verdict"],
            )
        )
    columns = (
        *("method", "models", "options", "batch", "tokens", "outcomes", "runs", "drafted", "accepted"),
        *("deepest", "error", ""),
    )
    print_table(columns, rows, "Output distributions, enumerated at temperatures from 0 to 1.5")
    rows = [
        (m["name"], f"{m['error']:.0e}", "caught" if m["caught"] else "MISSED") for m in report["mistakes"]
    ]
    print_table(("planted mistake", "error", ""), rows, "Mistakes that the proofs must catch")
    if "target" in report:
        from outpace.cli.commands.audit_target import print_checks

        print_checks(report["target"])
    typer.echo("interrupted" if report.get("interrupted") else "passed" if report["passed"] else "FAILED")
