"""Makes a plan: from loaded models that are measured here, or from configurations and a device's peaks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from outpace.api.model import Model, load
from outpace.api.opener import ModelOpener
from outpace.api.settings import end_tokens
from outpace.bench.measure.provenance import provenance
from outpace.bench.measure.workload import encode, load_items
from outpace.console import progress
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.cost.drafts import Drafts
from outpace.cost.forward_seconds import ForwardSeconds
from outpace.cost.hardware import Hardware
from outpace.cost.model_size import ModelSize
from outpace.cost.roofline import Roofline
from outpace.drafters.no_draft import NoDraft
from outpace.models.heads.formats.folder import method_in
from outpace.models.heads.kinds import head_methods
from outpace.models.hf.target import HFTarget
from outpace.models.names import resolve, usual_draft
from outpace.plan import measuring
from outpace.plan.acceptance import GivenAcceptance, read_acceptance
from outpace.plan.measuring import Acceptance, BuiltMethod
from outpace.plan.model_sizes import (
    Skeleton,
    head_size,
    model_size,
    open_head,
    read_config,
    skeleton,
    skeleton_of,
)
from outpace.plan.plan import MOST_ROWS, Memory, Plan
from outpace.plan.prediction import PlannedMethod, StepCosts
from outpace.plan.step_costs import FittedCosts, RooflineCosts
from outpace.plan.steps import TimedStep
from outpace.recipes import Method, default_method, get, parse_methods, split_outside
from outpace.verifiers.match import Match

DRAFT, HEAD, LOOKUP = "draft model", "draft head", "lookup"  # what drafts, where no method is named
NO_DRAFTS = Drafts((), ())


@dataclass(frozen=True)
class Asked:
    """What the user asks for."""

    target: str
    draft: str | None = None
    head: str | None = None
    lookup: bool = False
    methods: str | None = None
    acceptance: Sequence[
        str
    ] = ()  # each a value of `read_acceptance`, after `draft=`, `head=` or `lookup=` if several
    batches: Sequence[int] = (1, 2, 4, 8)
    context: int | None = None
    longest: int = 8
    prompts: str = "code"
    num_prompts: int = 10
    max_tokens: int = 64
    temperature: float = 0.0
    dtype: str = "auto"
    weights: str | None = None
    draft_weights: str | None = None

    def settings(self) -> dict[str, Any]:
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()
        }


def plan_for(asked: Asked, device: Hardware | None, loading: Mapping[str, Any]) -> Plan:
    """The plan. `device`: whose peaks are used; None: forwards are measured here. `loading`: further keyword
    arguments of `outpace.load`. ValueError for what cannot be planned."""
    given = _given(asked)
    if device is not None and given:
        return _from_configurations(asked, device, given)
    if Path(asked.target).suffix == ".json":
        raise ValueError(
            "a configuration alone can be planned for, but not measured: give --hardware (or --bandwidth "
            "and --flops) and --acceptance, or a target with weights"
        )
    model = load(
        asked.target, dtype=asked.dtype, weights=asked.weights, draft_weights=asked.draft_weights, **loading
    )
    return plan_with(model, asked, device, given)


def _given(asked: Asked) -> dict[str, list[GivenAcceptance]]:
    """What drafts -> its acceptance, as far as the user gives it."""
    named = {"draft": DRAFT, "head": HEAD, "lookup": LOOKUP}
    asked_for = {DRAFT: asked.draft is not None, HEAD: asked.head is not None, LOOKUP: asked.lookup}
    found: dict[str, list[GivenAcceptance]] = {}
    for text in asked.acceptance:
        name, equals, value = text.partition("=")
        if equals and name not in named:
            raise ValueError(f"--acceptance {text} is for {name!r}: it takes draft=, head= or lookup=")
        read = read_acceptance(value if equals else text, asked.longest)
        drafting = [kind for kind, is_asked in asked_for.items() if is_asked]
        if equals:
            kind = named[name]
        elif read[0].name:  # of a file of replay, which has lookups alone
            kind = LOOKUP
        elif len(drafting) == 1:
            [kind] = drafting
        else:
            raise ValueError(
                f"--acceptance {text} could be of several: give --draft, --head or --lookup, and with more "
                f"than one of them write draft={text}"
            )
        if kind in found:
            raise ValueError(f"--acceptance is given twice for the {kind}: give it once")
        found[kind] = read
    missing = [kind for kind, is_asked in asked_for.items() if is_asked and kind not in found]
    if found and missing:
        raise ValueError(
            f"the acceptance of the {missing[0]} is missing: give it with a further --acceptance, or give "
            "none, to measure all"
        )
    if found and asked.methods:
        raise ValueError("methods are measured: give --methods or --acceptance, not both")
    return found


def _from_configurations(
    asked: Asked, device: Hardware, given: Mapping[str, Sequence[GivenAcceptance]]
) -> Plan:
    """The plan from configurations alone; no weights are read."""
    target = skeleton(read_config(asked.target))
    dtype = _dtype(asked.dtype, target)
    size = model_size(target, dtype, asked.weights)
    roofline = Roofline(size, device)
    context = asked.context or 1024
    methods: list[PlannedMethod] = []
    drafters: list[tuple[float, ModelSize]] = []
    for kind, acceptances in given.items():
        used: list[ModelSize] = []
        name = kind
        if kind == DRAFT:
            if asked.draft is None:
                raise ValueError("--acceptance draft= needs the draft model: give --draft")
            own = model_size(skeleton(read_config(asked.draft)), dtype, asked.draft_weights)
            name, used = f"{DRAFT} {asked.draft}", [own]
            drafters.append((own.weight_bytes, own))
        elif kind == HEAD:
            if asked.head is None:
                raise ValueError("--acceptance head= needs the draft head: give --head")
            own = head_size(open_head(asked.head, target), target, size)
            name, used = f"{HEAD} {asked.head}", [own.forward]
            drafters.append((own.weight_bytes, own.forward))
        costs = RooflineCosts(roofline, [Roofline(each, device) for each in used])
        methods += [PlannedMethod(each.name or name, each.drafts, costs, each.ranks) for each in acceptances]
    said = [f"{kind} {each.name} {each.said}".replace("  ", " ") for kind in given for each in given[kind]]
    return Plan(
        asked.target,
        roofline,
        PlannedMethod("plain", NO_DRAFTS, RooflineCosts(roofline)),
        methods,
        sorted(asked.batches),
        context,
        Memory.of(size, drafters, context, device.memory),
        measured=[],
        assumed=[
            f"acceptance: {', '.join(said)}, at every batch size.",
            device.assumptions(dtype),
            *_roofline_assumptions(asked),
        ],
        provenance=provenance("cpu"),
        settings={**asked.settings(), "hardware": device.name, "context": context},
    )


def _roofline_assumptions(asked: Asked) -> list[str]:
    compressed = f" Weights in {asked.weights} are computed in 16 bits." if asked.weights else ""
    return [
        "the weights are on one device and are read once in every forward; keys and values of a row are "
        "read once for all its tokens. Beside forwards a step takes 0.3 ms and the reading of its logits; "
        f"lookups take no time.{compressed}",
    ]


def _dtype(name: str, target: Skeleton) -> str:
    if name != "auto":
        return name
    stored = str(getattr(target.model.config, "dtype", None) or "bfloat16").removeprefix("torch.")
    return "bfloat16" if stored == "float32" else stored


@dataclass(frozen=True)
class _Part:
    """A method of a plan with models: what drafts in it, what is given of its acceptance, and what is
    measured."""

    method: BuiltMethod
    given: GivenAcceptance | None
    found: Acceptance
    drafters: Sequence[tuple[float, ModelSize]]  # bytes of the weights, and sizes

    @property
    def drafts(self) -> Drafts:
        return self.given.drafts if self.given else self.found.drafts

    @property
    def ranks(self) -> Sequence[float]:
        return self.given.ranks if self.given else self.found.ranks


def plan_with(
    model: Model,
    asked: Asked,
    device: Hardware | None = None,
    given: Mapping[str, Sequence[GivenAcceptance]] = MappingProxyType({}),
) -> Plan:
    """The plan with loaded models, whose acceptance is measured unless it is given, and whose forwards are
    measured unless there is a device of the table."""
    opener, target = ModelOpener(model), model.target
    named = _methods(asked, given)
    built = measuring.build(
        {each.name: each.method for each in named}, target, asked.draft or usual_draft(asked.target), opener
    )
    texts, sampling = _texts(asked, model)
    batches, context = sorted(asked.batches), asked.context or _usual_context(texts, asked)
    if model.max_length is not None and context + asked.longest >= model.max_length:
        raise ValueError(
            f"{asked.target} reads at most {model.max_length} tokens: give a smaller --context than {context}"
        )
    size = model_size(skeleton_of(target.model), _name(next(target.model.parameters()).dtype), asked.weights)
    parts: list[_Part] = []
    turns = measuring.num_turns(len(built) + 1, batches) if device is None else 0
    with progress(len(built) * len(texts) + turns) as advance:

        def accepted() -> None:
            advance("measuring acceptance", 1)

        for method, each in zip(built, named, strict=True):
            found = measuring.measure_acceptance(method, texts, sampling, asked.longest, after=accepted)
            parts.append(_Part(method, each.given, found, _sizes(method, model, size, asked.draft_weights)))
        if device is None:
            plain = Parts(target, NoDraft(), Match(), Fixed(0))
            timed = {
                "": (plain, [0]),
                **{each.method.name: (each.method.parts, each.found.lengths) for each in parts},
            }
            steps = measuring.timed_steps(
                timed, texts, sampling, batches, context, after=lambda: advance("measuring steps", 1)
            )
        else:
            steps = {}
    if device is None:
        forwards, costs, measured, assumed = _measured_costs(target, parts, steps, batches, context)
    else:
        forwards, costs, measured, assumed = _roofline_costs(asked, device, size, parts)
    drafters = {
        repr(each): each for part in parts for each in part.drafters
    }  # a drafter of two methods is one
    said = [f"{part.method.name} {part.given.said}" for part in parts if part.given]
    return Plan(
        asked.target,
        forwards,
        PlannedMethod("plain", NO_DRAFTS, costs[""]),
        [PlannedMethod(each.method.name, each.drafts, costs[each.method.name], each.ranks) for each in parts],
        batches,
        context,
        Memory.of(size, list(drafters.values()), context, device.memory if device else None),
        measured=[*_acceptance_sentence(asked, parts, len(texts)), *measured],
        assumed=[*([f"acceptance: {', '.join(said)}."] if said else []), *assumed],
        provenance=provenance(str(target.device)),
        settings={**asked.settings(), "hardware": device.name if device else None, "context": context},
        most_rows=MOST_ROWS if device else max(batches),
        commands={each.method.name: measuring.command(each.method, asked.target) for each in parts},
    )


def _measured_costs(
    target: HFTarget,
    parts: Sequence[_Part],
    steps: Mapping[str, Sequence[TimedStep]],
    batches: Sequence[int],
    context: int,
) -> tuple[ForwardSeconds, dict[str, StepCosts], list[str], list[str]]:
    """The target's forwards, the other costs by method ("" is plain decoding), what was measured and what is
    assumed."""
    nodes = max(math.ceil(part.drafts.drafted(part.drafts.longest)) for part in parts)
    with progress(measuring.num_forwards(batches, nodes, context), "measuring forwards") as advance:
        forwards = measuring.measure_target(
            target, batches, nodes, context, after=lambda: advance("measuring forwards", 1)
        )
    costs: dict[str, StepCosts] = {name: FittedCosts.fit(each, forwards) for name, each in steps.items()}
    rows = " and ".join(f"{rows} row{'s' if rows > 1 else ''}" for rows in sorted({1, max(batches)}))
    measured = (
        f"times of forwards of the target over up to {max(forwards.curve.sizes)} tokens, and of steps of "
        f"every method, with {rows} at {context} tokens of context, on this machine."
    )
    assumed = [
        "acceptance is the same at every batch size and context.",
        "batch sizes that were not timed take what the model says that was fitted to these times.",
    ]
    return forwards, costs, [measured], assumed


def _roofline_costs(
    asked: Asked, device: Hardware, size: ModelSize, parts: Sequence[_Part]
) -> tuple[ForwardSeconds, dict[str, StepCosts], list[str], list[str]]:
    """The same from a device's peaks."""
    forwards = Roofline(size, device)
    costs: dict[str, StepCosts] = {"": RooflineCosts(forwards)}
    for part in parts:
        drafters = [Roofline(each, device) for _, each in part.drafters]
        costs[part.method.name] = RooflineCosts(
            forwards, drafters, part.found.forwards, max(1.0, part.found.width)
        )
    assumed = [
        "acceptance is the same at every batch size and context.",
        device.assumptions(size.dtype),
        *_roofline_assumptions(asked),
    ]
    return forwards, costs, [], assumed


@dataclass(frozen=True)
class _Named:
    """A method under the name that it has in the plan, and its acceptance if that is given."""

    name: str
    method: Method
    given: GivenAcceptance | None = None


def _methods(asked: Asked, given: Mapping[str, Sequence[GivenAcceptance]]) -> list[_Named]:
    """The methods to plan for. Without a wish those that need no training."""
    if asked.methods:
        return [_Named(method.label, method) for method in parse_methods(asked.methods)]
    found: list[_Named] = []

    def add(method: Method, kind: str, name: str = "") -> None:
        found.append(_Named(name or method.label, method, next(iter(given.get(kind, ())), None)))

    is_open = asked.draft is None and asked.head is None and not asked.lookup and not given
    if asked.draft is not None or is_open and usual_draft(asked.target) is not None:
        add(Method(default_method(asked.target, has_draft=True)), DRAFT)
    if asked.head is not None:
        for method in _of_head(asked.head):
            shown = {name: value for name, value in method.options.items() if name != "head"}
            add(method, HEAD, Method(method.name, shown).label)
    replayed = [each for each in given.get(LOOKUP, ()) if each.name]
    found += [_Named(each.name, parse_methods(each.name)[0], each) for each in replayed]
    if (asked.lookup or is_open) and not replayed:
        add(Method(default_method("", has_draft=False)), LOOKUP)
    return found


def _of_head(name: str) -> list[Method]:
    """The method of a trained head, and with chains in place of its trees where it has both. ValueError if
    it is not trained."""
    folder = Path(resolve(name))
    if not folder.is_dir():
        raise ValueError(
            f"there is no trained draft head {name!r} to measure: give its folder, or plan for an untrained "
            "one with --hardware and --acceptance"
        )
    method = method_in(folder, head_methods())
    recipe = get(method)
    choices = get_args(get_type_hints(recipe.build)["tree"]) if "tree" in recipe.options else ()
    chains = [Method(method, {"tree": "chain", "head": name})] if "chain" in choices else []
    return [*chains, Method(method, {"head": name})]


def _texts(asked: Asked, model: Model) -> tuple[list[Tensor], SamplingParams]:
    """The prompts, and how they are decoded."""
    items = [
        item for source in split_outside(asked.prompts, ",") for item in load_items(source, asked.num_prompts)
    ]
    needed = asked.max_tokens + asked.longest + 1
    most = (model.max_length or 1 << 30) - needed
    texts = [tokens for item in items if 0 < len(tokens := encode(model.tokenizer, item)) <= most]
    if not texts:
        raise ValueError(f"every prompt is too long for {needed} new tokens: lower --max-tokens")
    stop = end_tokens(model.defaults, model.tokenizer)
    return texts, SamplingParams(temperature=asked.temperature, max_tokens=asked.max_tokens, stop=stop)


def _usual_context(texts: Sequence[Tensor], asked: Asked) -> int:
    """Committed tokens in the middle of an answer, on average over the prompts."""
    return max(4, round(mean(map(len, texts)) + asked.max_tokens / 2))


def _sizes(
    method: BuiltMethod, model: Model, like: ModelSize, draft_weights: str | None
) -> list[tuple[float, ModelSize]]:
    """Bytes of the weights and sizes of each model and head that a method drafts with."""
    found: list[tuple[float, ModelSize]] = []
    target = skeleton_of(model.target.model)
    for each in method.drafters:
        if isinstance(each, HFTarget):
            own = model_size(
                skeleton_of(each.model), _name(next(each.model.parameters()).dtype), draft_weights
            )
            found.append((own.weight_bytes, own))
        else:
            head = head_size(each.head, target, like)
            found.append((head.weight_bytes, head.forward))
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _acceptance_sentence(asked: Asked, parts: Sequence[_Part], num_prompts: int) -> list[str]:
    """What acceptance was measured on; nothing if all of it is given."""
    tested = ", ".join(f"{each.method.name} {each.found.tested}" for each in parts if not each.given)
    if not tested:
        return []
    return [
        f"acceptance, on {num_prompts} prompt{'s' * (num_prompts > 1)} of {asked.prompts} with up to "
        f"{asked.max_tokens} new tokens each at temperature {asked.temperature:g}; draft tokens that were "
        f"tested: {tested}."
    ]
