"""Whether a middle model pays: `python -m benchmarks.stages TARGET MIDDLE DRAFT`.

Measures speculative sampling with each two of the three models, predicts from that the time per token of
`polybasic` with all three and whether the middle model is worth its time (`outpace.cost.stages`), and
measures `polybasic` and `staged-sd` beside the prediction. `--json FILE` keeps what was measured; a second
run goes on with the methods that are missing there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from outpace.bench.measure.provenance import provenance, threads
from outpace.bench.measure.workload import encode, load_items
from outpace.bench.report.json_file import write_json
from outpace.core.contracts import Parts, Target
from outpace.core.sampling_params import SamplingParams
from outpace.cost.stages import Chain, Stage, pays
from outpace.decode import Session
from outpace.models.hf.target import load
from outpace.models.names import resolve
from outpace.recipes import get
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.tables import Table, print_tables


@dataclass(frozen=True)
class Run:
    """What one method took, prompts apart."""

    seconds: float  # per token, on the clock
    tokens: float  # per step, the bonus token included
    verify: float  # seconds of a step without its draft
    draft: float  # seconds of a forward of the draft model, with what surrounds it
    forwards: float  # of draft models, per step
    drafted: float  # tokens on the longest path of a draft


def measured(parts: Parts, prompts: Sequence[Tensor], sampling: SamplingParams) -> Run:
    """Decodes the prompts one after the other; the first step of each, which reads the prompt, does not
    count."""
    seconds = draft = 0.0
    tokens = steps = forwards = drafted = 0
    for prompt in prompts:
        session = Session(parts, (), (), LazyTargetProbs)
        session.add(prompt, sampling)
        began = 0.0
        for number, step in enumerate(session.steps()):
            if number:
                steps += 1
                tokens += len(step.generated[0])
                draft += step.seconds["draft"]
                forwards += step.draft.forwards
                drafted += max(step.draft.tree.forest.depths)
            else:
                began = perf_counter()
        seconds += perf_counter() - began
    return Run(
        seconds / tokens,
        tokens / steps,
        (seconds - draft) / steps,
        draft / max(1, forwards),
        forwards / steps,
        drafted / steps,
    )


@dataclass(frozen=True)
class Prediction:
    """Seconds per token, computed from pairs of the models."""

    without: float  # the target and its drafter
    with_middle: float
    inserted: bool  # whether the middle model pays


def prediction(pairs: Mapping[str, Run], depth: int) -> Prediction:
    """`pairs`: the runs of the target with the draft model (`small`), of the target with the middle model at
    the chain's length (`large`), and of the middle model with the draft model (`inner`)."""
    small, large, inner = pairs["small"], pairs["large"], pairs["inner"]
    rounds = ceil(depth / inner.tokens)  # of the middle model, for a draft of `depth` tokens or more
    now = Chain((Stage(small.verify, small.tokens),), small.draft, small.forwards)
    # a longer draft is verified: the target's time is that of such a forward, too
    stages = Stage(large.verify, large.tokens), Stage(inner.verify, large.tokens / rounds)
    after = Chain(stages, inner.draft, inner.forwards)
    return Prediction(now.seconds_per_token, after.seconds_per_token, pays(now, after))


def methods(models: Mapping[str, Target], depth: int, inner_depth: int) -> dict[str, Parts]:
    target, middle, draft = models["target"], models["middle"], models["draft"]
    pair, polybasic = get("speculative-sampling"), get("polybasic")
    whole = {"depth": depth, "inner_depth": inner_depth}
    return {
        "plain": get("autoregressive")(target),
        "small": pair(target, draft=draft, depth=inner_depth),
        "large": pair(target, draft=middle, depth=depth + inner_depth // 2),
        "inner": pair(middle, draft=draft, depth=inner_depth),
        "polybasic": polybasic(target, middle=middle, draft=draft, **whole),
        "staged-sd": get("staged-sd")(target, draft=middle, siblings=0, depth=depth),
    }


NAMES = {
    "plain": "target alone",
    "small": "target, draft",
    "large": "target, middle",
    "inner": "middle, draft",
    "polybasic": "polybasic: target, middle, draft",
    "staged-sd": "staged-sd: target, middle, n-grams",
}


def to_table(runs: Mapping[str, Run], found: Prediction) -> Table:
    predicted = {"small": found.without, "polybasic": found.with_middle}
    rows = [
        (
            NAMES[name],
            f"{1 / run.seconds:.1f}",
            f"{1 / predicted[name]:.1f}" if name in predicted else "",
            f"{run.tokens:.2f}",
            f"{run.forwards / run.drafted:.2f}" if run.drafted else "",
        )
        for name, run in runs.items()
    ]
    verdict = "insert the middle model" if found.inserted else "leave the middle model out"
    columns = ("models", "tokens/s", "predicted", "tokens per step", "forwards per draft token")
    return Table(f"The inequality says: {verdict}", columns, tuple(rows))


def opened(name: str, given: argparse.Namespace, weights: str | None) -> tuple[Target, Any]:
    compiled: dict[str, Any] = {"compile": True, "weights": weights} if given.compile else {}
    return load(resolve(name), dtype=given.dtype, **compiled)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=__doc__)
    for name in ("target", "middle", "draft"):
        parser.add_argument(name, help="a model: zoo:NAME or a folder")
    parser.add_argument("--depth", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--inner-depth", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--temperature", type=float, default=0.0, help="default: %(default)s")
    parser.add_argument("--prompts", default="code,arithmetic,edit", help="default: %(default)s")
    parser.add_argument("--num-prompts", type=int, default=4, help="of each kind (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=96, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--dtype", default="float32", help="default: %(default)s")
    parser.add_argument("--compile", action="store_true", help="compile the models")
    parser.add_argument("--middle-weights", help="int8 or int4: weights of the middle model, compiled")
    parser.add_argument("--json", type=Path, help="JSON file")
    given = parser.parse_args(arguments)
    if given.middle_weights and not given.compile:
        parser.error(f"weights in {given.middle_weights} need compiled models: add --compile")
    settings = {name: value for name, value in vars(given).items() if name != "json"}
    runs: dict[str, Run] = {}
    if given.json and given.json.exists():
        before = json.loads(given.json.read_text(encoding="utf-8"))
        if before["settings"] != settings:
            parser.error(f"{given.json} has other settings: give another file")
        runs = {name: Run(**run) for name, run in before["runs"].items()}
    with threads(given.threads):
        weights = {"middle": given.middle_weights}
        loaded = {
            name: opened(getattr(given, name), given, weights.get(name))
            for name in ("target", "middle", "draft")
        }
        tokenizer = loaded["target"][1]
        items = [item for kind in given.prompts.split(",") for item in load_items(kind)[: given.num_prompts]]
        prompts = [encode(tokenizer, item) for item in items]
        sampling = SamplingParams(given.temperature, max_tokens=given.max_tokens, seed=1)
        models = {name: model for name, (model, _) in loaded.items()}
        for name, parts in methods(models, given.depth, given.inner_depth).items():
            if name in runs:
                continue
            measured(parts, prompts[:1], sampling)  # warms up
            runs[name] = measured(parts, prompts, sampling)
            if given.json:
                kept = {each: asdict(run) for each, run in runs.items()}
                data = {"schema": "outpace-stages/1", "provenance": provenance(), "settings": settings}
                write_json(given.json, {**data, "runs": kept})
    print_tables([to_table(runs, prediction(runs, given.depth))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
