"""Load the models of a benchmark once for all methods, and build its `Measurement`."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from time import perf_counter
from typing import Any

from outpace.api.model import Model, load
from outpace.api.opener import ModelOpener
from outpace.api.settings import end_tokens
from outpace.bench.measure.contender import Contender, MethodContender, mode_of
from outpace.bench.measure.ideal import DRAFT, TARGET
from outpace.bench.measure.line_up import contenders, method_contenders
from outpace.bench.measure.measurement import Measurement
from outpace.bench.measure.provenance import provenance
from outpace.bench.measure.run import encode_prompts
from outpace.bench.measure.workload import WorkloadItem
from outpace.bench.report.summary import VARIED
from outpace.core.contracts import Target
from outpace.core.sampling_params import SamplingParams
from outpace.models.checkpoint import load_checkpoint
from outpace.models.hf.target import HFTarget
from outpace.models.names import resolve, usual_draft
from outpace.recipes import Method


@dataclass(frozen=True)
class StartedPeers:
    """Engines of other projects that take part in a benchmark."""

    contenders: Sequence[Contender] = ()
    versions: Mapping[str, str] = field(default_factory=dict)  # package -> version
    failed: Mapping[str, str] = field(default_factory=dict)  # contender that is left out -> reason


# Starts engines beside the methods: is given the loaded models, the methods, the tokens of the longest prompt
# and its output, and the batch size. What it starts ends with `BenchModels.stack`.
FurtherPeers = Callable[["BenchModels", Sequence[MethodContender], int, int], StartedPeers]


class ModeModels:
    """The target and the draft models in one mode, compiled or eager."""

    def __init__(self, model: Model, load_model: Callable[[str], Model]) -> None:
        """`load_model` loads a draft model by its name, in this mode; each name is loaded once."""
        self.model = model
        self.opener = ModelOpener(model, load_model)

    def targets(self, draft: str | None) -> dict[tuple[str, str], Target]:
        """(TARGET or DRAFT, mode) -> model: the target and, if a method has opened it, the benchmark's draft
        model."""
        mode = mode_of(self.model.target)
        drafts = {(DRAFT, mode): self.opener.loaded[draft].target} if draft in self.opener.loaded else {}
        return {(TARGET, mode): self.model.target, **drafts}


@dataclass
class BenchModels:
    """Loads the models of a benchmark and builds a `Measurement` of them.

    `target` and `draft` are model names; without `draft` the target's default draft model is used. With
    `compile` the forwards are compiled, and with `eager` every method is also measured with eager forwards.
    """

    stack: ExitStack
    target: str
    draft: str | None = None
    transformers_peer: bool = False  # measure transformers' own generation, with separately loaded models
    further_peers: FurtherPeers | None = None  # starts other engines that are measured too
    dtype: str = "auto"
    device: str | None = None
    revision: str | None = None  # of the target
    trust_remote_code: bool = False
    allow_pickle: bool = False
    compile: bool = False
    weights: str | None = None  # of the target, as in `outpace.load`
    draft_weights: str | None = None
    kv_cache: str | None = None  # of the target
    eager: bool = True
    # is called with a message for each model that is loaded
    on_message: Callable[[str], None] = lambda line: None
    load_seconds: dict[str, float] = field(default_factory=dict[str, float])
    compile_seconds: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        self.cross_vocabulary = (
            usual_draft(self.target, cross_vocabulary=True) if self.draft is None else None
        )
        self.draft = usual_draft(self.target) if self.draft is None else self.draft
        self._loaded: dict[str, Model] = {}
        self.model = self._load("target", self.target, self.weights, self.kv_cache, self.revision)
        self.modes = [ModeModels(self.model, self._load_draft)]
        if self.eager and self.model.target.compiled:
            eager = cache(lambda name: self._eager(self._load_draft(name)))
            self.modes.append(ModeModels(self._eager(self.model), eager))
        self.torch_dtype = next(self.model.target.model.parameters()).dtype
        self.used_device = str(self.model.target.device)
        self.peer_models: dict[str, Any] | None = None
        if self.transformers_peer:
            names = {"target": self.target, **({"draft": self.draft} if self.draft else {})}
            self.peer_models = {kind: self._load_separately(kind, name) for kind, name in names.items()}

    def _load(
        self,
        kind: str,
        name: str,
        weights: str | None,
        kv_cache: str | None = None,
        revision: str | None = None,
    ) -> Model:
        self.on_message(f"loading {kind} {name}")
        began = perf_counter()
        model = load(
            name,
            dtype=self.dtype,
            device=self.device,
            revision=revision,
            trust_remote_code=self.trust_remote_code,
            allow_pickle=self.allow_pickle,
            compile=self.compile,
            weights=weights,
            draft_weights=self.draft_weights,
            kv_cache=kv_cache,
        )
        self.load_seconds[kind] = perf_counter() - began
        if model.target.compiled:
            self.compile_seconds[kind] = model.target.compiled.seconds
            self.load_seconds[kind] -= self.compile_seconds[kind]
        return model

    def _load_draft(self, name: str) -> Model:
        if name not in self._loaded:
            kind = "draft" if name == self.draft else f"draft {name}"
            self._loaded[name] = self._load(kind, name, self.draft_weights)
        return self._loaded[name]

    def _load_separately(self, kind: str, name: str) -> Any:
        """A transformers model for the peer alone, so that hooks and settings are not shared with the
        engine's model."""
        self.on_message(f"loading peer's {kind} {name}")
        began = perf_counter()
        model, _ = load_checkpoint(
            resolve(name),
            dtype=self.torch_dtype,
            device=self.used_device,
            revision=self.revision if kind == "target" else None,
            trust_remote_code=self.trust_remote_code,
            allow_pickle=self.allow_pickle,
        )
        model.eval()
        self.load_seconds[f"peer's {kind}"] = perf_counter() - began
        return model

    def _eager(self, model: Model) -> Model:
        """The same model and weights, and as exact a KV cache, with eager forwards."""
        target = model.target
        target = HFTarget(target.model, weights=target.compressed_weights, kv_cache=target.kv_cache)
        return replace(model, target=target, heads={})  # heads are opened again, with eager forwards

    @property
    def targets(self) -> dict[tuple[str, str], Target]:
        """(TARGET or DRAFT, mode) -> the models whose forwards are timed."""
        return {name: each for mode in self.modes for name, each in mode.targets(self.draft).items()}

    def measurement(
        self,
        methods: Sequence[Method],
        items: Sequence[WorkloadItem],
        temperatures: Sequence[float],
        sampling: SamplingParams,  # its stop tokens are replaced; temperature and seed are set per run
        *,
        rounds: int,
        repeat: int = 1,
        batch: int = 1,
        seed: int = 0,
        ignore_eos: bool = False,
        selection: str = VARIED,
        settings: dict[str, Any] | None = None,  # additional settings to report
        curves: Mapping[str, tuple[str, str]] | None = None,  # as in `Measurement`, of the labels of methods
        optional: Container[str] = (),  # labels of methods that are left out if they cannot be built
        exact: bool = False,  # methods that are not EXACT are refused
    ) -> Measurement:
        """Encode the prompts and build a contender for every method and peer. ValueError if no prompt fits
        the maximum length of target and drafts, and if all methods are left out."""
        failed: dict[str, str] = {}
        made = [
            method_contenders(
                methods,
                mode.model.target,
                self.draft,
                mode.opener,
                self.cross_vocabulary,
                optional=optional,
                exact=exact,
                left_out=failed,
            )
            for mode in self.modes
        ]
        if methods and all(method.label in failed for method in methods):
            label, why = next(iter(failed.items()))
            raise ValueError(
                f"each of these methods was left out: {', '.join(failed)}; name one with what it needs, as "
                f"in --methods {label}:OPTION=VALUE ({why})"
            )
        # a method that cannot be built in one mode is left out of all
        (ours, choices), *eager = [
            ([each for each in found if each.name not in failed], chosen) for found, chosen in made
        ]
        stop = () if ignore_eos else end_tokens(self.model.defaults, self.model.tokenizer)
        sampling = replace(sampling, stop=stop)
        limits = [self.model.max_length, *(each.max_length for each in ours)]
        max_length = min((limit for limit in limits if limit is not None), default=None)
        prompts, left_out = encode_prompts(
            items, self.model.tokenizer, ours[0], sampling, max_length=max_length
        )
        if not prompts:
            raise ValueError(
                f"every prompt is too long for {sampling.max_tokens} new tokens: lower --max-tokens"
            )
        needed = max(len(prompt.tokens) for prompt in prompts) + sampling.max_tokens
        peers = self.further_peers(self, ours, needed, batch) if self.further_peers else StartedPeers()
        source = provenance(self.used_device)
        about = {
            "target": self.target,
            "draft": self.draft,
            "methods": [each.name for each in ours],
            "ignore_eos": ignore_eos,
        }
        return Measurement(
            contenders=[
                *contenders(ours, self.peer_models, batch, eager[0][0] if eager else ()),
                *peers.contenders,
            ],
            cases=prompts,
            sampling=sampling,
            temperatures=temperatures,
            rounds=rounds,
            repeat=repeat,
            curves=curves or {},
            selection=selection,
            batch=batch,
            seed=seed,
            choices=choices,
            provenance={
                **source,
                "versions": {**source["versions"], **peers.versions},
                "dtype": self.dtype_name,
                "precision": ours[0].precision,  # in effect
            },
            settings=about | self._compiling | {"loading": self._loading} | (settings or {}),
            tokenizer=self.model.tokenizer,
            load_seconds=self.load_seconds,
            compile_seconds=self.compile_seconds,
            left_out=left_out,
            failed=failed | dict(peers.failed),
        )

    @property
    def _compiling(self) -> dict[str, Any]:
        """Settings of compiled models that are not the defaults."""
        formats = {
            "weights": self.weights,
            "draft_weights": self.draft_weights,
            "kv_cache": self.kv_cache,
        }
        found = {name: each for name, each in formats.items() if each is not None}
        return {"compile": True, **found} if self.model.target.compiled else {}

    @property
    def _loading(self) -> dict[str, Any]:
        """Other options of loading that are not the defaults."""
        given = {
            "dtype": self.dtype if self.dtype != "auto" else None,
            "device": self.device,
            "revision": self.revision,
            "trust_remote_code": self.trust_remote_code or None,
            "allow_pickle": self.allow_pickle or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def dtype_name(self) -> str:
        """The torch dtype of the target, such as "bfloat16"."""
        return str(self.torch_dtype).removeprefix("torch.")
