"""Drafting inside vLLM: `python -m benchmarks.in_vllm --json FILE --vllm PYTHON`.

vLLM without drafts, with each of its own methods, with outpace's proposer and with an exported head, and
outpace itself, in one run on one machine. Every contender has the best of a few settings, found before on
other prompts by the same measurement; then all run side by side, on new prompts of code and of edits in each
round, and on the same prompts once more: repeated questions. What a drafter learns from earlier requests it
keeps, as in a server. All texts are greedy.

The steps of vLLM are timed too: a drafter's seconds as a share of those of the target's forward.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks import prompt_sets
from benchmarks.peers.environments import PEER_ENGINES, PeerEnvironment, find_environment
from benchmarks.peers.rows import WorkerContender
from benchmarks.peers.vllm_variables import vllm_variables
from benchmarks.peers.worker import Worker, close_all, environment_of
from outpace.api.export import export
from outpace.api.settings import end_tokens
from outpace.bench.measure.bootstrap import median_interval
from outpace.bench.measure.contender import Contender, MethodContender, PeerFailed, RunOutcome
from outpace.bench.measure.line_up import method_contenders
from outpace.bench.measure.models import BenchModels
from outpace.bench.measure.provenance import provenance, threads
from outpace.bench.measure.run import EncodedPrompt, encode_prompts
from outpace.bench.measure.workload import load_items
from outpace.bench.report.json_file import write_json
from outpace.cli.output import print_status
from outpace.core.sampling_params import SamplingParams
from outpace.models.names import resolve
from outpace.recipes import parse_methods
from outpace.tables import Table, print_tables

SCHEMA = "outpace-in-vllm/1"
PLAIN, NGRAM, OURS, OUTPACE = "vLLM", "vLLM ngram", "outpace in vLLM", "outpace"
KINDS = ("code", "edit")
REPEATED = "repeated"
PROPOSER = "outpace.integrations.vllm.Proposer"
KV_BYTES = 1 << 28  # of the KV cache of each vLLM: all contenders are in memory at the same time
SLACK = 64  # positions of vLLM's texts beyond prompt and answer
NUM_SEARCHED = 4  # prompts of each kind with which settings are compared, with one stream
# outpace's own methods, of which the best one takes part
METHODS = (
    "speculative-sampling,suffix-decoding:preset=cpu:max_cached_tokens=100000,prompt-lookup:depth=5,auto"
)
Settings = dict[str, Any]


def vllm_settings(draft: str, head: str) -> dict[str, dict[str, Settings]]:
    """Contender -> name of a setting -> vLLM's arguments."""

    def speculation(length: int, method: str, own: Settings | None = None, **fields: Any) -> Settings:
        config = {"method": method, "num_speculative_tokens": length, **fields}
        return {"config": config, "additional": {} if own is None else {"outpace": own}}

    def ours(length: int, method: str, **options: Any) -> Settings:
        return speculation(length, "custom_class", {"method": method, **options}, model=PROPOSER)

    return {
        PLAIN: {"": {"config": None, "additional": {}}},
        NGRAM: {
            f"{length} tokens": speculation(length, "ngram", prompt_lookup_min=1, prompt_lookup_max=3)
            for length in (3, 5, 10)
        },
        "vLLM suffix": {f"{length} tokens": speculation(length, "suffix") for length in (8, 16)},
        "vLLM draft_model": {
            f"{length} tokens": speculation(length, "draft_model", model=draft) for length in (3, 5)
        },
        "vLLM eagle3": {f"{length} tokens": speculation(length, "eagle3", model=head) for length in (3, 5)},
        OURS: {
            **{
                f"suffix-decoding, {length} tokens": ours(
                    length, "suffix-decoding", preset="cpu", tree=False, depth=length
                )
                for length in (8, 15)
            },
            "prompt-lookup, 5 tokens": ours(5, "prompt-lookup", allow_shorter=True, depth=5),
        },
    }


@dataclass(frozen=True)
class Batch:
    """Prompts that are decoded together, as many as there are streams."""

    workload: str
    round: int
    index: int
    prompts: tuple[EncodedPrompt, ...]


@dataclass
class Turn:
    """One contender on one batch."""

    contender: str
    batch: Batch
    outcome: RunOutcome
    # of a drafter in vLLM, the median seconds of its steps; None: not known
    propose: float | None = None
    forward: float | None = None
    num_steps: int | None = None

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return sum(map(len, self.outcome.outputs)) / self.outcome.seconds


@dataclass
class Line:
    """What takes part: the contenders of one number of streams, by name, and their settings."""

    contenders: dict[str, Contender] = field(default_factory=dict[str, Contender])
    settings: dict[str, str] = field(default_factory=dict[str, str])


def batches(prompts: Mapping[str, Sequence[EncodedPrompt]], streams: int, rounds: int) -> list[Batch]:
    """Rounds of new prompts of each kind, and after them the same prompts as repeated questions. The prompts
    are shared out among the rounds; a batch has as many as there are streams."""
    found: list[Batch] = []
    for number in range(rounds):
        new: list[Batch] = []
        for kind, each in prompts.items():
            groups = [tuple(each[at : at + streams]) for at in range(0, len(each), streams)]
            groups = [group for group in groups if len(group) == streams]
            new += [Batch(kind, number, index, groups[index]) for index in range(number, len(groups), rounds)]
        found += new
        found += [Batch(REPEATED, number, index, each.prompts) for index, each in enumerate(new)]
    return found


def shares(
    prompts: Sequence[EncodedPrompt], without: Sequence[EncodedPrompt], number: int
) -> list[list[EncodedPrompt]]:
    """These prompts, each once and none of `without`, in as many parts of about the same size: the drafters
    of one number of streams may have learned the answers of another's."""
    known = {tuple(each.tokens.tolist()) for each in without}
    new: list[EncodedPrompt] = []
    for each in prompts:
        if (tokens := tuple(each.tokens.tolist())) not in known:
            known.add(tokens)
            new.append(each)
    return [new[index::number] for index in range(number)]


def take_turn(name: str, contender: Contender, batch: Batch, sampling: SamplingParams) -> Turn:
    """Let a contender decode a batch."""
    outcome = contender.run([each.tokens for each in batch.prompts], [sampling] * len(batch.prompts))
    turn = Turn(name, batch, outcome)
    if isinstance(contender, WorkerContender):
        times = contender.worker.request({"times": True})["outputs"]
        turn.num_steps = len(times["forward"])
        turn.forward = median(times["forward"])
        turn.propose = median(times["propose"]) if times["propose"] else None
    return turn


def start_vllm(
    name: str,
    peer: PeerEnvironment,
    settings: Settings,
    shared: Settings,
    register: Callable[[Worker], Any],
) -> WorkerContender:
    """A worker with vLLM. PeerFailed if it does not start."""
    environment = environment_of(os.environ, shared["threads"], own=False)
    environment |= vllm_variables(peer.python, shared["threads"])
    del environment["VLLM_CPU_KVCACHE_SPACE"]  # which would replace KV_BYTES
    worker = Worker(peer.python, Path(peer.engine.script), {**shared, **settings}, environment)
    register(worker)
    worker.ready()
    return WorkerContender(name, worker)


def speed_of(contender: Contender, tried: Sequence[Batch], sampling: SamplingParams) -> float:
    """The geometric mean, over the kinds of prompts and repeated questions, of tokens per second."""
    take_turn("", contender, tried[0], sampling)  # compiles what is compiled at the first use
    tokens, seconds = defaultdict[str, int](int), defaultdict[str, float](float)
    for batch in tried:
        turn = take_turn("", contender, batch, sampling)
        tokens[batch.workload] += sum(map(len, turn.outcome.outputs))
        seconds[batch.workload] += turn.outcome.seconds
    speeds = [tokens[workload] / seconds[workload] for workload in tokens]
    return prod(speeds) ** (1 / len(speeds))


def searched(
    starts: Mapping[str, Mapping[str, Callable[[], Contender]]],
    tried: Mapping[int, Sequence[Batch]],  # number of streams -> batches
    sampling: SamplingParams,
    failed: dict[str, str],
) -> tuple[dict[int, Line], dict[str, Any]]:
    """For each number of streams the contenders at their best settings, running, and the speeds of all."""
    lines = {streams: Line() for streams in tried}
    speeds: dict[str, Any] = {}
    for name, settings in starts.items():
        found: dict[int, dict[str, float]] = {streams: {} for streams in tried}
        running: dict[str, Contender] = {}
        for setting, start in settings.items():
            print_status(f"starting {name} {setting}".rstrip())
            try:
                running[setting] = start()
                for streams, planned in tried.items():
                    found[streams][setting] = speed_of(running[setting], planned, sampling)
            except (PeerFailed, OSError) as error:
                failed[f"{name} {setting}".rstrip()] = str(error)
                for each in found.values():
                    each.pop(setting, None)
            best = {fastest(each) for each in found.values() if each}
            for other in set(running) - best:
                loser = running.pop(other)
                if isinstance(loser, WorkerContender):
                    loser.close()
        for streams, each in found.items():
            if each:
                setting = fastest(each)
                lines[streams].contenders[name] = running[setting]
                lines[streams].settings[name] = setting
        speeds[name] = {str(streams): each for streams, each in found.items()}
    return lines, speeds


def fastest(speeds: Mapping[str, float]) -> str:
    """The setting with the most tokens per second."""
    return max(speeds, key=lambda setting: speeds[setting])


def rows(turns: Sequence[Turn], streams: int, settings: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each contender and workload: tokens per second, ratios to vLLM without drafts and with n-gram
    lookup on the same batch, tokens of a step in each stream, and how long drafting takes."""
    by_batch = {
        (turn.contender, turn.batch.workload, turn.batch.round, turn.batch.index): turn for turn in turns
    }
    found: list[dict[str, Any]] = []
    for workload in (*KINDS, REPEATED):
        for name, setting in settings.items():
            own = {key[2:]: turn for key, turn in by_batch.items() if key[:2] == (name, workload)}

            def over(
                other: str, own: Mapping[Any, Turn] = own, workload: str = workload
            ) -> dict[str, float] | None:
                pairs = [(turn, by_batch.get((other, workload, *where))) for where, turn in own.items()]
                ratios = [[turn.speed / base.speed] for turn, base in pairs if base is not None]
                return median_interval(ratios).to_json() if ratios else None

            row: dict[str, Any] = {
                "streams": streams,
                "workload": workload,
                "contender": name,
                "setting": setting,
                "batches": len(own),
                "tokens_per_second": median_interval([[turn.speed] for turn in own.values()]).to_json(),
                "over_plain": over(PLAIN),
                "over_ngram": over(NGRAM),
                "same_texts": same_texts(own.values(), by_batch),
            }
            steps = sum(turn.num_steps or 0 for turn in own.values())
            if steps:
                tokens = sum(len(text) for turn in own.values() for text in turn.outcome.outputs)
                row["tokens_per_forward"] = tokens / steps
            timed = [turn for turn in own.values() if turn.propose is not None and turn.forward]
            if timed:
                row["forward_ms"] = median_interval([[1e3 * (turn.forward or 0)] for turn in timed]).to_json()
                row["propose_ms"] = median_interval([[1e3 * (turn.propose or 0)] for turn in timed]).to_json()
                shares = [[100 * (turn.propose or 0) / (turn.forward or 1)] for turn in timed]
                row["propose_percent"] = median_interval(shares).to_json()
            found.append(row)
    return found


def same_texts(turns: Any, by_batch: Mapping[Any, Turn]) -> float:
    """The share of texts that are those of vLLM without drafts."""
    pairs = [
        (text, plain)
        for turn in turns
        for text, plain in zip(
            turn.outcome.outputs,
            by_batch[PLAIN, turn.batch.workload, turn.batch.round, turn.batch.index].outcome.outputs,
            strict=True,
        )
    ]
    return sum(text == plain for text, plain in pairs) / len(pairs)


def table(found: Sequence[Mapping[str, Any]], streams: int) -> Table:
    def interval(value: Mapping[str, float] | None) -> str:
        return "-" if value is None else f"{value['median']:.2f} ({value['low']:.2f} to {value['high']:.2f})"

    cells = [
        (
            row["workload"],
            row["contender"],
            row["setting"],
            f"{row['tokens_per_second']['median']:.0f}",
            interval(row["over_plain"]),
            interval(row["over_ngram"]),
            interval(row.get("propose_percent")),
        )
        for row in found
        if row["streams"] == streams
    ]
    headings = ("prompts", "", "setting", "tokens/s", "over vLLM", "over ngram", "drafting, % of a forward")
    return Table(f"{streams} streams", headings, tuple(cells))


def main(
    json: Annotated[Path, typer.Option(help="File to write.")],
    vllm: Annotated[Path, typer.Option(help="Python of an environment with vLLM and outpace.")],
    target: Annotated[str, typer.Option(help="The target: zoo:NAME or a folder.")] = "zoo:target",
    draft: Annotated[str, typer.Option(help="Its draft model.")] = "zoo:draft",
    head: Annotated[str, typer.Option(help="A head of EAGLE-3 for it, which is exported.")] = "zoo:eagle3",
    dtype: Annotated[str, typer.Option(help="dtype of all models.")] = "bfloat16",
    streams: Annotated[str, typer.Option(help="Requests at a time, separated by commas.")] = "1,8",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, which share the prompts.")] = 4,
    num_prompts: Annotated[int, typer.Option(min=3, help="Prompts of each kind, with one stream.")] = 20,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 96,
    num_threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 2,
    methods: Annotated[str, typer.Option(help="Of outpace itself: the best takes part.")] = METHODS,
    leave_out: Annotated[str, typer.Option(help="Contenders, as in 'vLLM suffix,vLLM eagle3'.")] = "",
) -> None:
    """Measure drafting inside vLLM beside vLLM's own methods and outpace itself."""
    numbers = [int(each) for each in streams.split(",")]
    peer = find_environment(PEER_ENGINES["vllm"], str(vllm))
    known = provenance("cpu")
    known |= {"threads": num_threads, "versions": {**known["versions"], **peer.versions}}
    workers: list[Worker] = []
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        stack.enter_context(threads(num_threads))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.callback(close_all, workers)
        models = BenchModels(
            stack, target, draft, dtype=dtype, compile=True, eager=False, on_message=print_status
        )
        export(head, engine="vllm", target=models.model, output=folder / "head")
        prompt_sets.write(folder / "prompts")
        stop = end_tokens(models.model.defaults, models.model.tokenizer)
        sampling = SamplingParams(0.0, max_tokens=max_tokens, stop=stop)
        contenders, _ = method_contenders(
            parse_methods(methods), models.model.target, models.draft, models.modes[0].opener
        )

        def encoded(source: str, kind: str, number: int) -> list[EncodedPrompt]:
            items = load_items(source, number)
            plain = contenders[0]
            found, _ = encode_prompts(items, models.model.tokenizer, plain, sampling)
            return [EncodedPrompt(each.id, kind, each.tokens) for each in found]

        largest = max(numbers)
        others = {kind: encoded(kind, kind, max(NUM_SEARCHED, largest)) for kind in KINDS}
        prompts = {
            kind: [
                *encoded(str(folder / "prompts" / f"{kind}.jsonl"), kind, 1 << 30),
                *encoded(kind, kind, 1 << 30),
            ]
            for kind in KINDS
        }
        longest = max(
            len(each.tokens) for part in (prompts, others) for group in part.values() for each in group
        )
        shared: Settings = {
            "target": resolve(target),
            "dtype": dtype,
            "depth": SLACK,
            "needed_tokens": longest + max_tokens,
            "max_length": models.model.max_length,
            "batch": largest,
            "eager": False,
            "threads": num_threads,
            "timed": True,
            "kv_bytes": KV_BYTES,
        }
        starts: dict[str, Mapping[str, Callable[[], Contender]]] = {
            name: {
                setting: partial(start_vllm, name, peer, values, shared, workers.append)
                for setting, values in settings.items()
            }
            for name, settings in vllm_settings(resolve(draft), str(folder / "head")).items()
            if name not in leave_out.split(",")
        }
        starts[OUTPACE] = {each.name: partial(_same, each) for each in contenders[1:]}
        tried = {
            number: batches(
                {kind: each[: max(NUM_SEARCHED, number)] for kind, each in others.items()}, number, 1
            )
            for number in numbers
        }
        lines, speeds = searched(starts, tried, sampling, failed)
        parts = {kind: shares(prompts[kind], others[kind], len(numbers)) for kind in KINDS}
        planned = {
            number: batches(
                {kind: parts[kind][index][: num_prompts if number == 1 else None] for kind in KINDS},
                number,
                rounds,
            )
            for index, number in enumerate(numbers)
        }
        total = sum(len(planned[number]) * len(lines[number].contenders) for number in numbers)
        print_status(f"measuring {total} turns")
        results: list[dict[str, Any]] = []
        for number in numbers:
            line = lines[number]
            for contender in line.contenders.values():
                contender.reset()
            turns: list[Turn] = []
            names = list(line.contenders)
            for position, batch in enumerate(planned[number]):
                first = position % len(names)
                for name in (*names[first:], *names[:first]):
                    turns.append(take_turn(name, line.contenders[name], batch, sampling))
            results += rows(turns, number, line.settings)
    print_tables([table(results, number) for number in numbers])
    for name, reason in failed.items():
        print_status(f"{name} was left out: {reason}")
    about = {
        "target": target,
        "draft": draft,
        "head": head,
        "dtype": dtype,
        "rounds": rounds,
        "max_tokens": max_tokens,
        "searched": speeds,
        "failed": failed,
    }
    write_json(json, {"schema": SCHEMA, "provenance": known, "settings": about, "results": results})


def _same(contender: MethodContender) -> MethodContender:
    return contender


if __name__ == "__main__":
    typer.run(main)
