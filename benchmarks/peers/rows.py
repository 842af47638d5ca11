"""Peer engines as contenders: one per way of decoding (plain, draft model, prompt lookup), in worker
processes, at the best of several settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from benchmarks.peers import gguf_models, openvino_models
from benchmarks.peers.environments import PeerEnvironment
from benchmarks.peers.worker import Worker, environment_of
from outpace.bench.measure.acceptance_bound import AcceptanceBound
from outpace.bench.measure.best_setting import BestSetting, draft_depths, lookups, setting_name
from outpace.bench.measure.contender import Contender, MethodContender, PeerFailed, RunOutcome
from outpace.core.sampling_params import SamplingParams
from outpace.models.names import resolve

# values at which a sampling parameter has no effect; only other values are sent to a peer
NEUTRAL_SETTINGS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
Options = dict[str, Any]
# engine -> what writes a model in its format; the others read folders
CONVERTERS = {"openvino": openvino_models.converted, "llamacpp": gguf_models.converted}


@dataclass
class WorkerContender:
    """A peer engine with one setting, in a worker process."""

    name: str
    worker: Worker
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: str = ""  # data type of the computation, as the engine reports it
    kind: str = "peer"
    mode: str = ""
    single: bool = False

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome:
        first = sampling[0]
        answer = self.worker.request(
            {
                "prompts": [prompt.tolist() for prompt in prompts],
                "max_tokens": first.max_tokens,
                "temperature": float(first.temperature),
                "seeds": [params.seed for params in sampling],
                "stop": list(first.stop),
                "settings": {
                    name: getattr(first, name)
                    for name, neutral in NEUTRAL_SETTINGS.items()
                    if getattr(first, name) != neutral
                },
            }
        )
        return RunOutcome([list(tokens) for tokens in answer["outputs"]], float(answer["seconds"]))

    def acceptance_bound(
        self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]
    ) -> AcceptanceBound:
        return AcceptanceBound()  # draft tokens of another engine cannot be observed

    def lossless(self, temperature: float) -> bool:
        return True

    def reset(self) -> None:
        pass  # nothing to drop: the engine's prefix caching is off

    def close(self) -> None:
        self.worker.close()


@dataclass(frozen=True)
class PeerRow:
    """One way of decoding with a peer engine, and the settings to try."""

    name: str
    mode: str  # "plain", "draft" or "prompt-lookup"
    settings: Mapping[str, Options]  # name in tables -> options

    @property
    def needs(self) -> tuple[str, ...]:
        """The models that this way of decoding uses."""
        return ("target", "draft") if self.mode == "draft" else ("target",)


def peer_rows(peer: PeerEnvironment, methods: Sequence[MethodContender], draft: str | None) -> list[PeerRow]:
    """Plain decoding, decoding with a draft model if speculative-sampling is measured, and prompt lookup if
    prompt-lookup is measured."""
    engine = peer.engine
    ways: list[tuple[str, str, list[Options]]] = [("plain", "plain", [{}])]
    if depths := draft_depths(methods) if draft is not None else []:
        options = [{**own, "depth": depth} for own in engine.draft_options for depth in depths]
        ways.append(("draft", engine.draft, options))
    if found := lookups(methods):
        options = [
            {**own, "depth": depth, "max_ngram": max_ngram}
            for own in engine.lookup_options
            for depth, max_ngram in found
        ]
        ways.append(("prompt-lookup", engine.lookup, options))
    modes: list[Options] = [{"eager": False}, {"eager": True}] if engine.compiles else [{}]
    return [
        PeerRow(
            f"{engine.name} {name}",
            mode,
            {setting_name(each | how): each | how for each in settings for how in modes},
        )
        for mode, name, settings in ways
    ]


@dataclass
class PeerLauncher:
    """Starts the worker processes of peer engines, all with the same models, data type and number of
    threads."""

    names: Mapping[str, str | None]  # "target" and "draft" -> name of the model
    dtype: str  # torch dtype, such as "bfloat16"
    weights: Mapping[str, str | None]  # "target" and "draft" -> "int8", "int4" or None: whole weights
    threads: int
    needed_tokens: int  # tokens of the longest prompt and its output
    max_length: int | None  # maximum tokens of a sequence; None: no limit known
    batch: int
    environment: Mapping[str, str]
    on_message: Callable[[str], None]
    register: Callable[[Worker], Any]  # is passed every worker, so that its owner can close it
    seconds: dict[str, float] = field(default_factory=dict)  # seconds of converting and loading, by label
    failed: dict[str, str] = field(default_factory=dict)  # row -> reason why it is left out

    def rows(self, peer: PeerEnvironment, methods: Sequence[MethodContender]) -> list[Contender]:
        """A contender for each way of decoding. The worker of a way with one setting is started here, others
        by `BestSetting.search`."""
        rows = peer_rows(peer, methods, self.names.get("draft"))
        models, broken = dict[str, str](), dict[str, str]()
        for kind in dict.fromkeys(kind for row in rows for kind in row.needs):
            try:
                models[kind] = self._model(peer, kind)
            except (OSError, ValueError) as error:
                broken[kind] = str(error)
        contenders: list[Contender] = []
        for row in rows:
            try:
                if reason := next((broken[kind] for kind in row.needs if kind in broken), None):
                    raise PeerFailed(reason)
                needed = {kind: models[kind] for kind in row.needs}
                starts = {
                    name: partial(self._start, peer, row, options, needed)
                    for name, options in row.settings.items()
                }
                if len(starts) == 1:
                    (start,) = starts.values()
                    contenders.append(start())
                else:
                    contenders.append(BestSetting(f"{row.name}, best of {len(starts)} settings", starts))
            except (PeerFailed, OSError) as error:
                self.failed[row.name] = str(error)
        return contenders

    def _model(self, peer: PeerEnvironment, kind: str) -> str:
        name, weights, engine = str(self.names[kind]), self.weights[kind], peer.engine.name
        if weights is not None and weights not in peer.engine.compressed:
            raise ValueError(f"with {engine} only whole weights are measured, not {weights}")
        if (convert := CONVERTERS.get(engine)) is None:
            return resolve(name)
        place, seconds = convert(peer, name, self.dtype, weights, self.environment, self.on_message)
        if seconds:
            self.seconds[f"converting {kind} for {engine}"] = seconds
        return str(place)

    def _start(
        self, peer: PeerEnvironment, row: PeerRow, options: Options, models: Mapping[str, str]
    ) -> WorkerContender:
        name = f"{row.name}:{setting_name(options)}" if options else row.name
        self.on_message(f"starting {name}")
        began = perf_counter()
        settings = {
            "mode": row.mode,
            **models,
            "depth": options.get("depth"),
            "max_ngram": options.get("max_ngram"),
            "type": options.get("type"),
            "p_min": options.get("p_min"),
            "program": peer.program,
            "eager": options.get("eager", False),
            "dtype": self.dtype,
            "threads": self.threads,
            "needed_tokens": self.needed_tokens,
            "max_length": self.max_length,
            "batch": self.batch,
        }
        environment = environment_of(self.environment, self.threads, own=peer.own)
        if peer.engine.variables:
            environment |= peer.engine.variables(peer.python, self.threads)
        worker = Worker(peer.python, Path(peer.engine.script), settings, environment)
        self.register(worker)
        about = worker.ready()
        self.seconds[name] = perf_counter() - began
        return WorkerContender(name, worker, options, str(about.get("precision", "")))
