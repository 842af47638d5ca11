"""Overhead of a decoding step outside the models' forwards: `python -m benchmarks.overhead`.

Overhead is the time outside the forwards of target and draft model and outside warping of logits (which plain
decoding needs too): growing the draft tree, preparing scores, verification, commit, and updating drafter and
controller. Medians over steps, in microseconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from outpace.bench.measure.provenance import provenance, threads
from outpace.bench.report.json_file import write_json
from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model import grow
from outpace.models.checkpoint import load_checkpoint
from outpace.models.hf.target import HFTarget
from outpace.models.names import resolve
from outpace.recipes import get
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.tables import Table, markdown, print_tables

# targets for one row, in microseconds per step; "greedy level" and "sampled level" are added per draft level
GOAL = {"fixed": 200.0, "greedy level": 50.0, "sampled level": 80.0, "tree": 600.0}
PROMPT = 24


@dataclass(frozen=True)
class OverheadCase:
    """A decoding configuration whose overhead is measured."""

    name: str
    build: Callable[[HFTarget, HFTarget], Parts]
    temperature: float = 0.0
    rows: int = 1
    goal: float | None = None


@dataclass(frozen=True)
class Overhead:
    """The median overhead of one case by part of a step, in microseconds per step."""

    case: str
    rows: int
    steps: int
    draft: float  # drafter, without draft model forwards and the computation of q from logits
    prepare: float  # preparing scores, outside the target's forward
    verify: float
    commit: float
    observe: float
    total: float
    low: float  # quartiles of the total
    high: float
    goal: float | None
    per_row: float | None = None  # added to the total by each row after the first


def cases(most_levels: int = 5, rows: Sequence[int] = (1, 2, 4, 8)) -> list[OverheadCase]:
    """The configurations to measure: chains of every length, greedy and sampled, a tree of 16 nodes, and
    batches."""

    def chain(depth: int) -> Callable[[HFTarget, HFTarget], Parts]:
        return lambda target, draft: get("speculative-sampling")(target, draft=draft, depth=depth)

    def lookup(target: HFTarget, draft: HFTarget) -> Parts:
        return get("prompt-lookup")(target, depth=4, allow_shorter=True)

    def tree(target: HFTarget, draft: HFTarget) -> Parts:
        return get("mcsd")(target, draft=draft, widths=(4, 3))

    fixed, greedy, sampled = GOAL["fixed"], GOAL["greedy level"], GOAL["sampled level"]
    found = [OverheadCase("plain, greedy", lambda target, draft: get("autoregressive")(target))]
    found += [
        OverheadCase("n-gram chain of 4, greedy", lookup, rows=count, goal=fixed if count == 1 else None)
        for count in rows
    ]
    levels = range(1, most_levels + 1)
    found += [OverheadCase(f"model chain of {n}, greedy", chain(n), goal=fixed + n * greedy) for n in levels]
    found += [
        OverheadCase(f"model chain of {n}, sampled", chain(n), 1.0, goal=fixed + n * sampled) for n in levels
    ]
    goal = GOAL["tree"]
    found += [
        OverheadCase("tree of 16 nodes, greedy", tree, goal=goal),
        OverheadCase("tree of 16 nodes, sampled", tree, 1.0, goal=goal),
    ]
    found += [OverheadCase("model chain of 4, greedy", chain(4), rows=count) for count in rows if count > 1]
    found += [
        OverheadCase("model chain of 4, sampled", chain(4), 1.0, rows=count) for count in rows if count > 1
    ]
    return found


class Inside:
    """A wrapper around a function that sums the seconds spent inside it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        began = perf_counter()
        result = self.function(*arguments, **options)
        self.seconds += perf_counter() - began
        return result

    def take(self) -> float:
        """The seconds since the last `take`."""
        taken, self.seconds = self.seconds, 0.0
        return taken


@contextmanager
def watched(owner: Any, name: str) -> Iterator[Inside]:
    """Context manager that wraps attribute `name` of `owner` with a timer (module hooks would cost as much as
    the overhead measured here)."""
    before = getattr(owner, name)
    own = name in vars(owner)
    inside = Inside(before)
    setattr(owner, name, inside)
    try:
        yield inside
    finally:
        setattr(owner, name, before) if own else delattr(owner, name)


def measure(case: OverheadCase, target: HFTarget, draft: HFTarget, *, tokens: int, repeats: int) -> Overhead:
    """Run a case several times, after a warm-up, on prompts whose two halves are equal, so that n-gram lookup
    has matches."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(target.vocab, (case.rows, PROMPT // 2), generator=generator)
    prompts = list(torch.cat([half, half], 1))
    found: dict[str, list[float]] = {
        name: [] for name in ("draft", "prepare", "verify", "commit", "observe", "total")
    }
    with (
        watched(target.forward.model, "forward") as scoring,
        watched(draft.forward.model, "forward") as drafting,
        watched(grow, "warp") as warping,
    ):
        for repeat in range(repeats + 1):
            sampling = [
                SamplingParams(case.temperature, max_tokens=tokens, seed=repeat + row)
                for row in range(case.rows)
            ]
            session = Session(case.build(target, draft), prompts, sampling, LazyTargetProbs)
            for number, step in enumerate(session.steps()):
                parts = _split(step, scoring.take(), drafting.take() + warping.take())
                # left out: warm-up, the first steps, which read the prompt, and steps after a row has ended
                if repeat and number > 1 and len(step.ctx.slots) == case.rows:
                    for name, value in parts.items():
                        found[name].append(1e6 * value)
    medians = {name: median(values) for name, values in found.items()}
    totals = sorted(found["total"])
    quartiles = totals[len(totals) // 4], totals[3 * len(totals) // 4]
    return Overhead(
        case.name, case.rows, len(totals), **medians, low=quartiles[0], high=quartiles[1], goal=case.goal
    )


def _split(step: Step, scoring: float, drafting: float) -> dict[str, float]:
    seconds = step.seconds
    parts = {name: seconds.get(name, 0.0) for name in ("verify", "commit", "observe")}
    parts["draft"] = seconds.get("draft", 0.0) - drafting
    parts["prepare"] = seconds.get("score", 0.0) - scoring
    return {**parts, "total": sum(parts.values())}


def per_row(one: Overhead, found: Sequence[Overhead]) -> float | None:
    """Microseconds that each row after the first adds to the same case with one row; None for one row."""
    single = next((each.total for each in found if each.case == one.case and each.rows == 1), None)
    return None if single is None or one.rows == 1 else (one.total - single) / (one.rows - 1)


def small_pair(vocab: int = 4096) -> tuple[Any, Any]:
    """A small random target and draft: overhead does not depend on the models' outputs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(layers: int) -> Any:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=vocab, num_hidden_layers=layers, hidden_size=64, intermediate_size=128
        )
        config.num_attention_heads, config.num_key_value_heads, config.head_dim = 2, 1, 32
        return LlamaForCausalLM(config).eval()

    with torch.random.fork_rng():
        return make(2), make(1)


def to_table(found: Sequence[Overhead]) -> Table:
    names = ("draft", "prepare", "verify", "commit", "observe", "total")
    rows = [
        (
            f"{each.case}, {each.rows} row{'s' * (each.rows > 1)}",
            *(f"{getattr(each, name):.0f}" for name in names),
            f"{each.low:.0f}-{each.high:.0f}",
            "-" if each.goal is None else f"{each.goal:.0f}",
        )
        for each in found
    ]
    columns = ("microseconds a step", *names, "quartiles", "goal")
    return Table("Overhead: outside the models' forwards and warping", columns, tuple(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--target", help="zoo:target, a folder or a hub name; default: small random models")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args(arguments)
    if bool(given.target) != bool(given.draft):
        parser.error("give --target and --draft together")
    with threads(given.threads):
        if given.target:
            names = resolve(given.target), resolve(given.draft)
            models = [load_checkpoint(name, dtype=given.dtype, device="cpu")[0] for name in names]
        else:
            models = list(small_pair())
        found: list[Overhead] = []
        target, draft = HFTarget(models[0]), HFTarget(models[1])
        for case in cases():
            one = measure(case, target, draft, tokens=given.tokens, repeats=given.repeats)
            found.append(replace(one, per_row=per_row(one, found)))
            print(f"{case.name}, {case.rows} rows: {found[-1].total:.0f} us", file=sys.stderr, flush=True)
        table = to_table(found)
        print_tables([table])
        data = {
            "schema": "outpace-overhead/1",
            "provenance": provenance(),
            "settings": {name: value if value is None else str(value) for name, value in vars(given).items()},
            "microseconds": [asdict(each) for each in found],
        }
        if given.json:
            write_json(given.json, data)
        if given.markdown:
            given.markdown.write_text(markdown(table, 2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
