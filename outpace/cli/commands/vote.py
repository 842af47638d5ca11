"""`outpace vote`: answer a problem by a majority vote of several samples."""

from __future__ import annotations

import json as json_
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import FAILED, Debug, exit_with, report_failures
from outpace.cli.output import print_json, print_status, print_table
from outpace.cli.prompt_files import read_prompt_file, read_prompts
from outpace.cli.recipe_options import TARGET, RecipeCommand, chosen_method

if TYPE_CHECKING:
    from outpace.api.vote_plan import Problem, VotePlan
    from outpace.core.contracts import Recipe

COLUMNS = (
    "samples",
    "draft tokens",
    "right answers",
    "tokens/s of a sample",
    "ms per step",
    "tokens per problem",
    "",
)


class VoteCommand(RecipeCommand):
    """A command whose default method is latency-aware-tts."""

    def default_of(self, named: Namespace) -> str:
        return "latency-aware-tts"


@report_failures
@o.with_groups
def vote(
    ctx: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The problem; - or none: standard input.")
    ] = None,
    target: o.Target = TARGET,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="A method of `outpace list`, or @FILE with what --calibrate found; default: "
            "latency-aware-tts.",
        ),
    ] = None,
    recipe: o.RecipeFile = None,
    speculative_config: o.SpeculativeConfig = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples that vote; default: as in @FILE, or 8.")
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            help="Regular expression: its last match, or that of its first group; default: a number."
        ),
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds of decoding after which the vote ends; default: none.")
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help='Instead of voting, find samples and draft length on problems: .jsonl with "prompt" or '
            '"messages", and "answer".'
        ),
    ] = None,
    max_samples: Annotated[int, typer.Option(min=1, help="With --calibrate: most samples tried.")] = 16,
    max_depth: Annotated[int, typer.Option(min=0, help="With --calibrate: most draft tokens tried.")] = 8,
    max_step_ms: Annotated[
        float | None, typer.Option(help="With --calibrate: most milliseconds of a decoding step.")
    ] = None,
    exact: o.Exact = False,
    *,
    generation: o.GenerationOptions,
    chat: Annotated[
        bool, typer.Option("--chat", help="Take the problem as a user's message, by the chat template.")
    ] = False,
    loading: o.LoadingOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With --calibrate: write the plan here, for @FILE.")
    ] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: Debug = False,
) -> None:
    """Decode several samples of one problem together, at temperature 1 unless --temperature is given, and
    print the answer that most of them give."""
    used, given = chosen_method(ctx)
    request = generation.request() | {"exact": exact}
    if request["temperature"] is None:
        request["temperature"] = 1.0
    if answer is not None:
        request["answer"] = answer
    if calibrate is not None:
        limits: dict[str, Any] = {"max_samples": max_samples, "max_depth": max_depth}
        if max_step_ms is not None:
            limits["max_step_seconds"] = max_step_ms / 1000
        problems = _problems(calibrate, chat=chat)
        plan = _calibrate(used, given, request, problems, target, loading, deadline, limits, output)
        if json:
            print_json({"schema": "outpace-vote-plan/1", **plan.as_dict()})
        else:
            print_table(COLUMNS, _rows(plan), f"{len(problems)} problems, deadline {plan.deadline:g} s")
        return
    if output is not None:
        raise ValueError("--output is for the plan that --calibrate FILE makes: add that, or leave it out")
    [item] = read_prompts([prompt] if prompt is not None else None, None, chat=chat)

    from outpace.api.vote import SAMPLES
    from outpace.api.vote import vote as decide
    from outpace.console import progress

    count = samples or planned_samples(method) or SAMPLES
    model = loading.load(target)
    with progress(count) as advance:
        found = decide(
            model,
            item.prompt,
            used,
            samples=count,
            deadline=deadline,
            on_piece=lambda piece: advance(f"sample {piece.row + 1}", 0),
            **request,
            **given,
        )
    if json:
        print_json({"method": used.name, "samples": count, **found.as_dict(model.tokenizer)})
    elif found.answer is not None:
        typer.echo(found.answer)
    if not quiet and not json:
        ended = sum(branch.seconds is not None for branch in found.branches)
        print_status(
            f"{used.name}: {found.votes.get(found.answer or '', 0)} of {sum(found.votes.values())} votes, "
            f"{ended} of {count} samples finished, {found.stopped}, {found.seconds:.2f} s"
        )
    if found.answer is None:
        exit_with("no sample gave an answer: raise --deadline or --max-tokens, or change --answer", FAILED)


def planned_samples(method: str | None) -> int | None:
    """The number of samples in the file of `--method @FILE`; None if it has none."""
    if method is None or not method.startswith("@"):
        return None
    found = json_.loads(Path(method[1:]).read_text(encoding="utf-8")).get("samples")
    if found is not None and (not isinstance(found, int) or found < 1):
        raise ValueError(f"{method[1:]} has samples {found!r}: make it anew with --calibrate")
    return found


def _problems(path: Path, *, chat: bool) -> list[Problem]:
    from outpace.api.vote_plan import Problem

    problems: list[Problem] = []
    for number, item in enumerate(read_prompt_file(path), 1):
        answer = item.extra.get("answer")
        if not isinstance(answer, str | int | float) or isinstance(answer, bool):
            raise ValueError(f'{path}, prompt {number}: a problem needs an "answer", a text or a number')
        as_message = chat and isinstance(item.prompt, str)
        prompt = [{"role": "user", "content": item.prompt}] if as_message else item.prompt
        problems.append(Problem(prompt, str(answer)))
    return problems


def _calibrate(
    used: Recipe,
    given: dict[str, Any],
    request: dict[str, Any],
    problems: list[Problem],
    target: str,
    loading: o.LoadingOptions,
    deadline: float | None,
    limits: dict[str, Any],
    output: Path | None,
) -> VotePlan:
    """Search for a setting and write the plan."""
    from outpace.api.methods import choose_method
    from outpace.api.vote_plan import plan_votes
    from outpace.bench.report.files import check_writable
    from outpace.bench.report.json_file import write_json
    from outpace.console import progress

    if deadline is None:
        raise ValueError(
            "--calibrate counts the answers that are right at a deadline: give --deadline SECONDS"
        )
    if "depth" in given:
        raise ValueError("--calibrate chooses the draft length: leave out --depth, or use --max-depth")
    if output is not None:
        check_writable([output])
    _, options = choose_method(used, given, target)
    model = loading.load(target)
    # how many settings are tried is not known: each move of the search tries two or three
    num_moves = limits["max_depth"] + limits["max_samples"].bit_length()
    with progress(2 * len(problems) * num_moves) as advance:
        plan = plan_votes(
            model,
            problems,
            used,
            deadline=deadline,
            options=options,
            on_vote=lambda tried: advance(f"{tried.samples} samples, {tried.depth} draft tokens", 1),
            **limits,
            **request,
        )
    if output is not None:
        write_json(output, plan.as_dict())
        print_status(f"use it: outpace vote --method @{output} --deadline {deadline:g}")
    return plan


def _rows(plan: VotePlan) -> list[tuple[str, ...]]:
    return [
        (
            str(setting.samples),
            str(setting.depth),
            f"{outcome.accuracy:.0%}",
            f"{outcome.tokens_per_second:.1f}",
            f"{1000 * outcome.step_seconds:.1f}",
            f"{outcome.num_tokens:.0f}",
            "best" if setting == plan.search.best else "",
        )
        for setting, outcome in sorted(plan.search.tried.items())
    ]
