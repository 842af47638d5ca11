"""`outpace draft-design`: which draft model, and how many draft tokens, by measured times and acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outpace.cli.failures import Debug, report_failures
from outpace.cli.options import Compile, Json, Target, Threads
from outpace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from outpace.analysis.draft_design import Choice, Needed, StepTime
    from outpace.bench.measure.draft_design import Candidate, Decoded

Option = typer.Option
PLAIN = "no drafts"
COLUMNS = (
    "batch",
    "draft model",
    "parameters",
    "ms per draft token",
    "draft tokens",
    "ms per step",
    "tokens per step",
    "tokens/s of a row",
    "acceptance needed",
)
NOTE = (
    "Tokens per step count the bonus token. Times are predicted from measured forwards and the overhead of "
    "{reference}. Draft models that were given: the draft length with the most tokens per second, from the "
    "acceptance of each position at drafts of {longest} tokens, temperature {temperature:g} and about "
    "{context} tokens of context. Shapes (layers x width) with random weights: the tokens per step that they "
    "must reach to be as fast as the best of these, or as plain decoding if that is faster, with the draft "
    "length that needs the smallest acceptance rate. Another context, temperature or kind of prompts has "
    "other numbers."
)


@dataclass(frozen=True)
class Row:
    """The prediction for one draft model and batch size."""

    candidate: Candidate
    rows: int
    time: StepTime
    speeds: dict[int, float]  # draft length -> tokens per second of a row; empty if acceptance is unknown
    best: Choice | None  # None if acceptance is unknown
    needed: Needed | None  # what it must reach; None if acceptance is known


@dataclass(frozen=True)
class Check:
    """A prediction for steps that it was not made from."""

    draft: str
    rows: int
    length: int
    predicted: float  # seconds of a step
    measured: float

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        from outpace.analysis.draft_design import relative_error

        return relative_error(self.predicted, self.measured)


@dataclass(frozen=True)
class Design:
    """All results."""

    rows: list[Row]
    plain: dict[int, float]  # batch size -> tokens per second of a row without drafts
    checks: list[Check]
    acceptance: dict[str, Decoded]  # by draft model
    settings: dict[str, Any]

    def best(self, rows: int) -> Row | None:
        """The fastest draft model at a batch size; None if none is faster than plain decoding."""
        known = [(row.best.speed, row) for row in self.rows if row.rows == rows and row.best is not None]
        speed, row = max(known, key=lambda each: each[0], default=(0.0, None))
        return row if speed > self.plain[rows] and row is not None and row.best and row.best.length else None


@report_failures
def draft_design(
    target: Target = "zoo:target",
    draft: Annotated[
        list[str] | None,
        Option(help="A draft model, whose acceptance is measured; may be repeated. Default: the usual one."),
    ] = None,
    layers: Annotated[
        str, Option(help="Numbers of layers of the shapes to time, separated by commas.")
    ] = "1,2,4",
    widths: Annotated[
        str | None, Option(help="Sizes of their hidden states; default: the draft model's, or the target's.")
    ] = None,
    heads: Annotated[
        str | None,
        Option(help="Numbers of their attention heads; default: heads as wide as the draft model's."),
    ] = None,
    lengths: Annotated[str, Option(help="Numbers of draft tokens per step.")] = "1,2,3,4,6,8",
    batch: Annotated[str, Option(help="Numbers of rows that are decoded together.")] = "1",
    temperature: Annotated[float, Option(min=0, help="Temperature of the target and the drafts.")] = 0.0,
    max_tokens: Annotated[int, Option(min=1, help="Maximum number of new tokens of an answer.")] = 64,
    prompts: Annotated[
        str, Option(help="Prompt sets: code, arithmetic, edit, and files, separated by commas.")
    ] = "code",
    num_prompts: Annotated[
        int, Option(min=1, help="Maximum number of prompts of each set, spread evenly over it.")
    ] = 8,
    repeats: Annotated[int, Option(min=1, help="Timed repetitions of all forwards.")] = 7,
    dtype: Annotated[str, Option(help="auto, bfloat16, float16, float32 or float64.")] = "auto",
    device: Annotated[str | None, Option(help="cpu, cuda, ...; default: the best there is.")] = None,
    threads: Threads = None,
    compile: Compile = False,
    plot: Annotated[Path | None, Option(help="Draw the results into this file: .svg, .png or .pdf.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict the speed of draft models, also of shapes that nobody has trained, and name the best."""
    grid = {"layers": layers, "widths": widths, "heads": heads, "lengths": lengths, "batch": batch}
    numbers = {name: None if text is None else whole_numbers(name, text) for name, text in grid.items()}
    draw = _plotter(plot)

    from outpace.bench.measure import provenance

    with provenance.threads(threads):
        design = _measure(
            target,
            draft,
            numbers,
            {"temperature": temperature, "max_tokens": max_tokens, "prompts": prompts},
            num_prompts,
            repeats,
            {"dtype": dtype, "device": device, "compile": compile},
        )
        if json:
            from outpace.bench.report.json_file import finite

            known = provenance.provenance(design.settings["device"])
            print_json(finite(report(design, known)))
        else:
            _print(design)
    if plot and draw:
        draw(design, plot)
        typer.echo(f"drawn into {plot}", err=True)


def whole_numbers(name: str, text: str) -> list[int]:
    """Different numbers of at least 1 in rising order; ValueError for anything else."""
    try:
        found = sorted({int(piece) for piece in text.split(",")})
    except ValueError as error:
        raise ValueError(f"--{name} takes whole numbers separated by commas, not {text!r}") from error
    if found[0] < 1:
        raise ValueError(f"--{name} takes numbers of at least 1, not {found[0]}")
    return found


def _plotter(path: Path | None) -> Callable[[Design, Path], None] | None:
    """The plot function, None without a path; raises ModuleNotFoundError early if matplotlib is missing."""
    if path is None:
        return None
    import_module("matplotlib")
    return draw_design


def _measure(
    target: str,
    drafts: list[str] | None,
    numbers: dict[str, list[int] | None],
    given: dict[str, Any],
    num_prompts: int,
    repeats: int,
    how: dict[str, Any],
) -> Design:
    """Load or make all models, measure them and predict."""
    from outpace.analysis.draft_design import StepTime
    from outpace.api.opener import ModelOpener
    from outpace.api.settings import end_tokens
    from outpace.bench.measure import draft_design as m
    from outpace.bench.measure.workload import encode, load_items
    from outpace.cli.options import load_model
    from outpace.console import progress
    from outpace.core.sampling_params import SamplingParams
    from outpace.models.names import usual_draft
    from outpace.recipes import split_outside

    lengths, batches = numbers["lengths"] or [], numbers["batch"] or []
    items = [
        item for source in split_outside(given["prompts"], ",") for item in load_items(source, num_prompts)
    ]
    model = load_model(target, **how)
    opener, names = ModelOpener(model), drafts or [name for name in [usual_draft(target)] if name]
    candidates: list[Candidate] = []
    for name in names:
        opened = opener.draft(name)
        if opened.vocab != model.target.vocab:
            raise ValueError(
                f"{name} and {target} have vocabularies of different sizes: use a draft of its family"
            )
        candidates.append(m.Candidate(name, m.Shape.of(opened.model), opened, trained=True))
    base = candidates[0].model if candidates else model.target
    own = m.Shape.of(base.model)
    for shape in [
        m.Shape(layers, width, heads)
        for layers in numbers["layers"] or [own.num_layers]
        for width in numbers["widths"] or [own.width]
        for heads in numbers["heads"] or [max(1, width * own.num_heads // own.width)]
    ]:
        candidates.append(m.random_candidate(base, shape, compile=how["compile"]))
    longest, most = max(lengths), min(each for each in (model.max_length, 1 << 30) if each is not None)
    needed = given["max_tokens"] + longest + 1
    texts = [tokens for item in items if 0 < len(tokens := encode(model.tokenizer, item)) <= most - needed]
    if not texts:
        raise ValueError(f"every prompt is too long for {needed} new tokens: lower --max-tokens")
    sampling = SamplingParams(
        temperature=given["temperature"],
        max_tokens=given["max_tokens"],
        stop=end_tokens(model.defaults, model.tokenizer),
    )
    context, held_out = m.context_length(texts, sampling.max_tokens), m.held_out_length(lengths)
    # the last shape is the one that is tested: overhead is measured with the first model
    reference, tested = candidates[0], candidates[-1]
    checked = {reference.name: reference, tested.name: tested}
    trained = [each for each in candidates if each.trained]
    total = len(batches) * (m.num_timed(len(candidates), lengths, repeats) + m.ROUNDS * (1 + len(checked)))
    rows: list[Row] = []
    plain: dict[int, float] = {}
    checks: list[Check] = []
    with progress(total + len(trained) * len(texts)) as advance:
        found = {
            each.name: m.acceptance_by_position(
                model.target, each.model, texts, longest, sampling, after=lambda: advance("acceptance", 1)
            )
            for each in trained
        }
        for size in batches:
            curve, seconds = m.forward_times(
                model.target,
                candidates,
                lengths,
                rows=size,
                context=context,
                repeats=repeats,
                after=lambda: advance("forwards", 1),
            )
            steps = m.step_times(
                model.target,
                {"": (None, [0])} | {name: (each.model, lengths) for name, each in checked.items()},
                texts,
                rows=size,
                sampling=sampling,
                after=lambda: advance("steps", 1),
            )
            first = m.with_overhead(StepTime(seconds[0], curve), lengths, steps[reference.name])
            times = [StepTime(each, curve, first.token_overhead, first.step_overhead) for each in seconds]
            plain[size] = 1 / steps[""][0]
            rows += predict(candidates, times, size, lengths, found, steps[""][0])
            if held_out is not None:
                by_name = dict(zip([each.name for each in candidates], times, strict=True))
                checks += [
                    Check(name, size, held_out, by_name[name](held_out), steps[name][held_out])
                    for name in checked
                ]
    settings = {
        "target": target,
        "reference": reference.name,
        "lengths": lengths,
        "batch": batches,
        **given,
        "num_prompts": len(texts),
        "context": context,
        "device": str(model.target.device),
        "dtype": str(next(model.target.model.parameters()).dtype).removeprefix("torch."),
        "compile": how["compile"],
    }
    return Design(rows, plain, checks, found, settings)


def predict(
    candidates: Sequence[Candidate],
    times: Sequence[StepTime],  # of the candidates
    rows: int,
    lengths: Sequence[int],
    acceptance: dict[str, Decoded],
    plain_seconds: float,  # of a step without drafts
) -> list[Row]:
    """Speeds of the candidates whose acceptance is known; what the others must reach to be as fast as the
    best of these, or as plain decoding if that is faster."""
    from outpace.analysis.draft_design import Choice, Needed, best_length, expected_tokens

    known = {
        each.name: best_length(acceptance[each.name].acceptance, time, lengths)
        for each, time in zip(candidates, times, strict=True)
        if each.name in acceptance
    }
    reference = max([Choice(0, 1.0, plain_seconds), *known.values()], key=lambda choice: choice.speed)
    found: list[Row] = []
    for each, time in zip(candidates, times, strict=True):
        if each.name in known:
            rates = acceptance[each.name].acceptance
            speeds = {length: expected_tokens(rates, length) / time(length) for length in lengths}
            found.append(Row(each, rows, time, speeds, known[each.name], None))
        else:
            found.append(Row(each, rows, time, {}, None, Needed.least(reference, time, lengths)))
    return found


def report(design: Design, known: dict[str, Any]) -> dict[str, Any]:
    """The JSON report: provenance, settings, acceptance by position, predictions and their errors."""
    best = {size: design.best(size) for size in design.plain}
    return {
        "schema": "outpace-draft-design/1",
        "provenance": known,
        "settings": design.settings,
        "notes": note(design),
        "acceptance": {
            name: {"rates": each.acceptance, "tested": each.tested}
            for name, each in design.acceptance.items()
        },
        "plain_tokens_per_second": design.plain,
        "results": [
            {
                "draft": row.candidate.name,
                "batch": row.rows,
                "layers": row.candidate.shape.num_layers,
                "width": row.candidate.shape.width,
                "heads": row.candidate.shape.num_heads,
                "parameters": row.candidate.parameters,
                "draft_seconds": row.time.draft,
                "token_overhead_seconds": row.time.token_overhead,
                "step_overhead_seconds": row.time.step_overhead,
                "step_seconds": {str(n): row.time(n) for n in design.settings["lengths"]},
                "tokens_per_second": row.speeds,
                "best": row.best and {**vars_of(row.best), "tokens_per_second": row.best.speed},
                "needed": row.needed and vars_of(row.needed),
            }
            for row in design.rows
        ],
        "best": {
            size: None
            if row is None or row.best is None
            else {"draft": row.candidate.name, **vars_of(row.best)}
            for size, row in best.items()
        },
        "held_out": [{**vars_of(check), "error": check.error} for check in design.checks],
    }


def vars_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass."""
    from dataclasses import asdict

    return asdict(value)


def note(design: Design) -> str:
    """What the numbers mean."""
    given = design.settings
    return NOTE.format(
        reference=given["reference"],
        longest=max(given["lengths"]),
        temperature=given["temperature"],
        context=given["context"],
    )


def _print(design: Design) -> None:
    title = f"draft models for {design.settings['target']}"
    print_table(COLUMNS, [_cells(row) for row in design.rows], title)
    typer.echo(f"{note(design)}\n")
    for size, speed in design.plain.items():
        row = design.best(size)
        if row is None or row.best is None:
            line = "no draft model that was given is predicted to be faster than plain decoding"
        else:
            line = (
                f"best is {row.candidate.name} with drafts of length {row.best.length}, predicted "
                f"{row.best.speed:.1f} tokens/s, {row.best.speed / speed:.2f} times plain decoding"
            )
        typer.echo(f"Batch {size}: {line} ({speed:.1f} tokens/s)")
    for check in design.checks:
        typer.echo(
            f"Held out, batch {check.rows}: {check.draft} with drafts of length {check.length}: predicted "
            f"{1000 * check.predicted:.2f} ms per step, measured {1000 * check.measured:.2f} ms "
            f"({check.error:+.0%})"
        )


def _cells(row: Row) -> tuple[str, ...]:
    if row.best is not None:
        length, tokens, speed, rate = row.best.length, f"{row.best.tokens:.2f}", f"{row.best.speed:.1f}", "-"
    else:
        assert row.needed is not None
        length, speed = row.needed.length, "-"
        tokens = f"{row.needed.tokens:.2f} needed"
        rate = "cannot" if row.needed.rate is None else f"{row.needed.rate:.2f}"
    return (
        str(row.rows),
        row.candidate.name,
        f"{row.candidate.parameters:,}",
        f"{1000 * (row.time.draft + row.time.token_overhead):.2f}",
        str(length),
        f"{1000 * row.time(length):.2f}",
        tokens,
        speed,
        rate,
    )


def draw_design(design: Design, path: Path) -> None:
    """Write a chart: by batch size, the predicted tokens per second by draft length of each draft model that
    was given, and the tokens per step that each shape must reach."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    from outpace.analysis.draft_design import Choice, needed_tokens
    from outpace.bench.report.line_chart import Line, LinePanel, line_chart
    from outpace.bench.report.plot import COLOURS, save

    names = [PLAIN, *dict.fromkeys(row.candidate.name for row in design.rows)]
    colours = dict(zip(names, COLOURS, strict=False))
    if len(names) > len(COLOURS):
        scale = colormaps["viridis"].resampled(len(names))
        colours = {name: to_hex(scale(index)) for index, name in enumerate(names)}
    lengths = design.settings["lengths"]
    speeds: list[LinePanel] = []
    needed: list[LinePanel] = []
    for size, plain in design.plain.items():
        rows, best = [row for row in design.rows if row.rows == size], design.best(size)
        reference = Choice(0, 1.0, 1 / plain) if best is None or best.best is None else best.best
        speeds.append(
            LinePanel(
                f"tokens/s of a row, batch {size}",
                [Line([(0, plain)], colours[PLAIN])]
                + [Line(list(row.speeds.items()), colours[row.candidate.name]) for row in rows if row.speeds],
                "draft tokens",
            )
        )
        needed.append(
            LinePanel(
                f"tokens per step needed, batch {size}",
                [
                    Line(
                        [(n, needed_tokens(reference, row.time(n))) for n in lengths],
                        colours[row.candidate.name],
                    )
                    for row in rows
                    if not row.speeds
                ],
                "draft tokens",
            )
        )
    save(line_chart([speeds, needed], colours=colours, dashes={}), path)
