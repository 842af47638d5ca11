"""`outpace bench`: time methods side by side on a model, prompts and a machine, and say which one to use."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import FAILED, Debug, plainly, stop

if TYPE_CHECKING:
    from outpace.bench.measurement import Measurement

Option = typer.Option
METHODS = "prompt-lookup,speculative-sampling"


@plainly
def bench(
    target: Annotated[str, Option(help="The model: zoo:NAME, a folder, or a name on the hub.")] = "zoo:target",
    methods: Annotated[
        str, Option(help="Names separated by commas, with options: prompt-lookup:depth=8,longest=2.")
    ] = METHODS,
    draft: Annotated[str | None, Option(help="The small model for methods that want one.")] = None,
    prompts: Annotated[
        str, Option(help="Of code, arithmetic, edit, and files: jsonl, also of public benchmarks, or text.")
    ] = "code",
    num_prompts: Annotated[int, Option(min=1, help="Most prompts of each set, spread evenly over it.")] = 10,
    temperature: Annotated[str, Option(help="One or several, separated by commas.")] = "0,1",
    max_tokens: Annotated[int, Option(min=1, help="Most new tokens of an answer.")] = 128,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    rounds: Annotated[int, Option(min=1, help="How often everything is measured.")] = 3,
    batch: Annotated[int, Option(min=1, help="Prompts decoded together.")] = 1,
    dtype: Annotated[str, Option(help="auto, bfloat16, float16, float32 or float64.")] = "auto",
    device: Annotated[str | None, Option(help="cpu, cuda, ...; default: the best there is.")] = None,
    threads: Annotated[int | None, Option(min=1, help="CPU threads.")] = None,
    compile: o.Compile = False,
    seed: Annotated[int, Option(help="Of all samples.")] = 0,
    peer: Annotated[str | None, Option(help="transformers: measure its own generation beside ours.")] = None,
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Write on after the end-of-text token.")] = False,
    json: Annotated[Path | None, Option(help="Write everything that was measured here.")] = None,
    markdown: Annotated[Path | None, Option(help="Write the tables here.")] = None,
    recommend: Annotated[Path | None, Option(help="Write the recommendation here, for --method @FILE.")] = None,
    html: Annotated[Path | None, Option(help="Write a page with charts here.")] = None,
    out: Annotated[Path | None, Option(help="A folder for all: bench.json, bench.md, bench.html, method.json.")] = None,
    debug: Debug = False,
) -> None:
    """Time methods side by side on your model, prompts and machine."""
    if peer not in (None, "transformers"):
        raise ValueError(f"there is no peer {peer!r}: --peer takes transformers")
    if out:
        json, markdown = json or out / "bench.json", markdown or out / "bench.md"
        html, recommend = html or out / "bench.html", recommend or out / "method.json"
    heats = _temperatures(temperature)
    named_settings = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition_penalty": repetition_penalty}
    settings = {name: value for name, value in named_settings.items() if value is not None}
    _check(settings)

    from outpace.bench import provenance
    from outpace.bench.methods import parse_methods, split_outside
    from outpace.bench.workload import load_items

    named = parse_methods(methods)
    items = [item for source in split_outside(prompts, ",") for item in load_items(source, num_prompts)]
    with ExitStack() as stack:
        stack.enter_context(provenance.threads(threads))
        loaded = Loaded(stack, target, draft, peer, dtype, device, compile)
        measurement = loaded.prepare(
            named,
            items,
            heats,
            max_tokens=max_tokens,
            rounds=rounds,
            batch=batch,
            seed=seed,
            ignore_eos=ignore_eos,
            settings=settings,
        )
        say(f"{len(measurement.cases)} prompts, {measurement.total} runs")
        _measure(measurement, loaded.targets)
        _report(measurement, json, {markdown: _markdown, html: _html}, recommend)


def _check(settings: dict[str, Any]) -> None:
    """Find out about impossible numbers before a model is loaded."""
    from outpace.core.context import Sampling

    Sampling(**settings)


def say(line: str) -> None:
    """What is going on, on the error stream."""
    typer.echo(line, err=True)


class Loaded:
    """The models of a measurement, and how long they took to load."""

    def __init__(
        self,
        stack: ExitStack,
        target: str,
        draft: str | None,
        peer: str | None,
        dtype: str,
        device: str | None,
        compile: bool,
    ) -> None:
        from outpace.api.model import foreign, load, opener
        from outpace.models.names import usual_draft

        self.names = {"target": target, "draft": usual_draft(target) if draft is None else draft}
        self.foreign = usual_draft(target, foreign=True) if draft is None else None
        self.seconds: dict[str, float] = {}
        loaded: dict[str, Any] = {}
        opened: dict[str, Any] = {}

        def timed(kind: str, name: str, make: Any) -> Any:
            say(f"loading {kind} {name}")
            began = perf_counter()
            made = make()
            self.seconds[kind] = perf_counter() - began
            if compile and getattr(made, "target", None) and made.target.compiled:
                self.seconds[f"compiling {kind}"] = made.target.compiled.seconds
                self.seconds[kind] -= made.target.compiled.seconds
            return made

        def whole(value: str) -> Any:
            if value not in loaded:
                kind = "draft" if value == self.names["draft"] else f"draft {value}"
                loaded[value] = timed(kind, value, lambda: load(value, dtype=dtype, device=device, compile=compile))
            return loaded[value]

        def model(value: Any) -> Any:
            if not isinstance(value, str):
                return value
            if value not in opened:
                opened[value] = check(whole(value))
            return opened[value]

        def stranger(value: Any) -> Any:
            return foreign(self.model, whole(value)) if isinstance(value, str) else value

        self.model = timed("target", target, lambda: load(target, dtype=dtype, device=device, compile=compile))
        check = opener(self.model, stack)
        self.open, self.open_foreign = model, stranger
        self._opened = opened
        self.dtype = next(self.model.target.model.parameters()).dtype
        self.device = str(self.model.target.device)
        self.peer_models: dict[str, Any] | None = None
        if peer:
            from outpace.models.loading import load_checkpoint
            from outpace.models.names import resolve

            def separate(name: str) -> Any:
                return load_checkpoint(resolve(name), dtype=self.dtype, device=self.device)[0].eval()

            wanted = {kind: name for kind, name in self.names.items() if name}
            self.peer_models = {k: timed(f"peer's {k}", n, lambda n=n: separate(n)) for k, n in wanted.items()}

    @property
    def targets(self) -> dict[str, Any]:
        """Whose forwards are put on a cost curve."""
        drafts = {"draft": self._opened[name]} if (name := self.names["draft"]) in self._opened else {}
        return {"target": self.model.target, **drafts}

    def prepare(
        self,
        methods: Any,
        items: Any,
        heats: list[float],
        *,
        max_tokens: int,
        rounds: int,
        batch: int,
        seed: int,
        ignore_eos: bool,
        settings: dict[str, Any],
    ) -> Measurement:
        """Line up who takes part, and the prompts as tokens."""
        from outpace.api.settings import end_tokens
        from outpace.bench.line_up import contenders, engines
        from outpace.bench.measurement import Measurement
        from outpace.bench.provenance import provenance
        from outpace.bench.run import unfold
        from outpace.core.context import Sampling

        found, choices = engines(
            methods, self.model.target, self.names["draft"], self.open, self.open_foreign, self.foreign
        )
        ends = () if ignore_eos else end_tokens(self.model.defaults, self.model.tokenizer)
        sampling = Sampling(max_tokens=max_tokens, stop=ends, **settings)
        cases, left_out = unfold(items, self.model.tokenizer, found[0], sampling, room=self.model.max_length)
        if not cases:
            raise ValueError(f"no prompt leaves room for {max_tokens} new tokens: ask for fewer with --max-tokens")
        return Measurement(
            contenders=contenders(found, self.peer_models, batch),
            cases=cases,
            sampling=sampling,
            temperatures=heats,
            rounds=rounds,
            batch=batch,
            seed=seed,
            choices=choices,
            provenance={**provenance(self.device), "dtype": str(self.dtype).removeprefix("torch.")},
            settings={**self.names, "methods": [engine.name for engine in found], "ignore_eos": ignore_eos}
            | ({"compile": True} if self.model.target.compiled else {})
            | settings,
            load_seconds=self.seconds,
            left_out=left_out,
        )


def _temperatures(text: str) -> list[float]:
    try:
        heats = list(dict.fromkeys(float(piece) for piece in text.split(",")))
    except ValueError as error:
        raise ValueError(f"--temperature takes numbers separated by commas, not {text!r}") from error
    if min(heats) < 0 or max(heats) == float("inf"):
        raise ValueError("a temperature is 0 or a positive number")
    return heats


def _measure(measurement: Measurement, targets: dict[str, Any]) -> None:
    from outpace.bench.terminal import progress

    with progress(measurement.total) as tell:
        measurement.measure(targets, after=lambda run: tell(run.contender, 1), stage=lambda what: tell(what, 0))


def _markdown(measurement: Measurement, rows: Any) -> str:
    return measurement.to_markdown(rows)


def _html(measurement: Measurement, rows: Any) -> str:
    from outpace.bench.html import page

    return page(measurement, rows)


def _report(measurement: Measurement, json: Path | None, pages: dict[Path | None, Any], recommend: Path | None) -> None:
    from outpace.bench.measurement import write_json
    from outpace.bench.table import NOTE, tables
    from outpace.bench.terminal import show

    rows = measurement.rows()
    if json:
        write_json(json, measurement.to_json(rows))
    for path, write in pages.items():
        if path and rows:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(write(measurement, rows), encoding="utf-8")
    show(tables(rows))
    for name, why in measurement.failed.items():
        say(f"{name} was left out: {why}")
    where = f"; what was measured is in {json}" if json else ""
    if measurement.interrupted:
        stop(f"interrupted after {len(measurement.runs)} of {measurement.total} runs{where}", FAILED)
    if measurement.error:
        say(f"stopped after {len(measurement.runs)} of {measurement.total} runs{where}")
        raise measurement.error
    for name, tree in measurement.trees(rows).items():
        shape = f"--parents {','.join(map(str, tree.shape.parents))}" if tree.shape.parents else "no draft"
        typer.echo(f"\nBest tree at the acceptance of {name}: {shape}, about {tree.speedup:.2f}x in forwards alone")
    advice = measurement.recommendation(rows)
    typer.echo(f"\n{NOTE}\n\nRecommendation: {advice.reason}")
    if recommend:
        write_json(recommend, measurement.advice(rows))
        typer.echo(f"Use it with: outpace generate --method @{recommend}")
