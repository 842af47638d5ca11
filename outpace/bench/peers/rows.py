"""Other engines as contenders: a row and a worker for each, with the settings of our own rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from outpace.bench.measure.acceptance_ceiling import Best
from outpace.bench.measure.contender import Engine, Outcome
from outpace.bench.peers.environments import PeerEnvironment
from outpace.bench.peers.openvino_models import converted
from outpace.bench.peers.worker import Worker, WorkerDied, environment_of
from outpace.core.sampling_params import SamplingParams
from outpace.models.names import resolve

ASKED = {
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}  # settings a peer is told of, unless idle


@dataclass
class Beside:
    """One mode of another engine, in a process of its own."""

    name: str
    worker: Worker
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: str = ""  # what the engine says it computes in
    kind: str = "peer"
    mode: str = ""
    single: bool = False

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> Outcome:
        first = sampling[0]
        answer = self.worker.ask(
            {
                "prompts": [prompt.tolist() for prompt in prompts],
                "max_tokens": first.max_tokens,
                "temperature": float(first.temperature),
                "seeds": [params.seed for params in sampling],
                "stop": list(first.stop),
                "settings": {
                    name: getattr(first, name) for name, idle in ASKED.items() if getattr(first, name) != idle
                },
            }
        )
        return Outcome([list(tokens) for tokens in answer["outputs"]], float(answer["seconds"]))

    def look(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> Best:
        return Best()  # what it drafts is not seen from outside

    def lossless(self, temperature: float) -> bool:
        return True

    def forget(self) -> None:
        pass  # no engine beside ours is given anything to keep


@dataclass(frozen=True)
class Wanted:
    """A row to be: what it is called, and what its worker is told."""

    name: str
    options: Mapping[str, Any]
    mode: str = "plain"

    @property
    def needs(self) -> tuple[str, ...]:
        """The models it is made of."""
        return ("target", "draft") if self.mode == "draft" else ("target",)


def wanted_rows(home: PeerEnvironment, engines: Sequence[Engine], draft: str | None) -> list[Wanted]:
    """Plain decoding, and the counterpart of every engine row that has one."""
    words, found = dict(home.kind.modes), {"plain": Wanted(f"{home.kind.name} plain", {})}
    for engine in engines:
        options: dict[str, Any] = {}
        mode = ""
        if engine.method == "speculative-sampling" and draft is not None:
            mode, options = "draft", {"depth": int(engine.options.get("depth") or 5)}
        elif engine.method == "prompt-lookup":
            depth, max_ngram = engine.options.get("depth") or 10, engine.options.get("max_ngram") or 3
            mode, options = "prompt-lookup", {"depth": int(depth), "max_ngram": int(max_ngram)}
        if mode:
            name = f"{home.kind.name} {words[mode]}:" + ",".join(
                f"{key}={value}" for key, value in options.items()
            )
            found.setdefault(name, Wanted(name, options, mode))
    return list(found.values())


@dataclass
class Invitation:
    """What all rows of other engines share, and what became of them."""

    names: Mapping[str, str | None]  # "target", "draft" -> the model's name
    dtype: str  # as torch calls it
    threads: int
    room: int  # tokens of the longest prompt and its answer
    most: int | None  # tokens the target can read
    batch: int
    environment: Mapping[str, str]
    say: Callable[[str], None]
    keep: Callable[[Worker], Any]  # told of every worker, so that it is ended whatever happens
    seconds: dict[str, float] = field(default_factory=dict)  # to convert and to load
    failed: dict[str, str] = field(default_factory=dict)  # row -> why it does not take part

    def rows(self, home: PeerEnvironment, engines: Sequence[Engine]) -> list[Beside]:
        """Start this engine's workers, one after another; those that do not come up are left out."""
        wanted = wanted_rows(home, engines, self.names.get("draft"))
        models, broken = dict[str, str](), dict[str, str]()
        for kind in dict.fromkeys(kind for row in wanted for kind in row.needs):
            try:
                models[kind] = self._model(home, kind)
            except (OSError, ValueError) as error:
                broken[kind] = str(error)
        found: list[Beside] = []
        for row in wanted:
            try:
                if why := next((broken[kind] for kind in row.needs if kind in broken), None):
                    raise WorkerDied(why)
                found.append(self._row(home, row, {kind: models[kind] for kind in row.needs}))
            except (WorkerDied, OSError) as error:
                self.failed[row.name] = str(error)
        return found

    def _model(self, home: PeerEnvironment, kind: str) -> str:
        name = str(self.names[kind])
        if not home.kind.converts:
            return resolve(name)
        folder, seconds = converted(home, name, self.dtype, self.environment, self.say)
        if seconds:
            self.seconds[f"converting {kind} for {home.kind.name}"] = seconds
        return str(folder)

    def _row(self, home: PeerEnvironment, row: Wanted, models: Mapping[str, str]) -> Beside:
        self.say(f"starting {row.name}")
        began = perf_counter()
        settings = {
            "mode": row.mode,
            **models,
            "depth": row.options.get("depth"),
            "max_ngram": row.options.get("max_ngram"),
            "dtype": self.dtype,
            "threads": self.threads,
            "room": self.room,
            "most": self.most,
            "batch": self.batch,
        }
        environment = environment_of(self.environment, self.threads, own=home.own)
        worker = Worker(home.python, Path(home.kind.script), settings, environment)
        self.keep(worker)
        about = worker.ready()
        self.seconds[row.name] = perf_counter() - began
        return Beside(row.name, worker, row.options, str(about.get("precision", "")))
